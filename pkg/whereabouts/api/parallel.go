package api

import "golang.org/x/sync/errgroup"

// maxConcurrent is the number of concurrent requests about single objects.
const maxConcurrent = 16

// NewGroup returns a group for requests about single objects. The group runs at most
// maxConcurrent requests at the same time.
func NewGroup() *errgroup.Group {
	all := new(errgroup.Group)
	all.SetLimit(maxConcurrent)
	return all
}
