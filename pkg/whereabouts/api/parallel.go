package api

import (
	"sync"
)

// maxConcurrent is how many requests about single objects are under way at once.
const maxConcurrent = 16

// ForEach calls do for every item, a bounded number at a time.
func ForEach[T any](items []T, do func(T)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxConcurrent)
	for _, item := range items {
		slots <- struct{}{}
		wg.Add(1)
		go func() {
			defer wg.Done()
			do(item)
			<-slots
		}()
	}
	wg.Wait()
}
