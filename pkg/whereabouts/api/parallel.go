package api

import "golang.org/x/sync/errgroup"

// maxConcurrent is how many requests about single objects are under way at once.
const maxConcurrent = 16

// NewGroup returns a group for requests about single objects. It runs a bounded number
// of them at once.
func NewGroup() *errgroup.Group {
	all := new(errgroup.Group)
	all.SetLimit(maxConcurrent)
	return all
}
