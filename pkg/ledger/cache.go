package ledger

import (
	"maps"
	"strings"
	"sync"

	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// Cache reads the records of a ledger as [Ledger.Held] does, but it decodes only records that have
// changed since it last read them. It misses no change, because each call compares the stamps of
// the files. The methods of a Cache are safe for concurrent use. Callers share the records, so they
// must not change them.
type Cache struct {
	ledger *Ledger

	mu    sync.Mutex
	known map[string]cached // by file name
}

// cached is a record that was read.
type cached struct {
	stamp  statefile.Stamp
	record *Record
}

// NewCache returns a Cache of the ledger. The ledger must stay open while the Cache is used.
func (l *Ledger) NewCache() *Cache { return &Cache{ledger: l, known: map[string]cached{}} }

// ofContainer returns the records of one container, as [Ledger.ofContainer] does.
func (c *Cache) ofContainer(id string) ([]*Record, []error) {
	prefix, ok := prefixOf(id)
	if !ok {
		return c.ledger.ofContainer(id)
	}
	return c.collect(prefix)
}

// collect returns the records in the files whose names begin with the prefix.
func (c *Cache) collect(prefix string) ([]*Record, []error) {
	var records []*Record
	var errs []error
	present := map[string]bool{}
	known := func(name string, s statefile.Stamp) bool {
		c.mu.Lock()
		have, ok := c.known[name]
		c.mu.Unlock()
		if !ok || have.stamp != s {
			return false
		}
		present[name] = true
		records = append(records, have.record)
		return true
	}
	err := c.ledger.attachments.ReadChangedOf(prefix, suffix, known, func(name string, s statefile.Stamp, data []byte, err error) {
		r, err := c.ledger.decode(name, data, err)
		if err != nil {
			errs = append(errs, err)
			return
		}
		if r.IPAM != nil {
			r.IPAM.Config = nil
		}
		present[name] = true
		records = append(records, r)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.known[name] = cached{s, r}
	})
	if err != nil {
		return nil, []error{err}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.known, func(name string, _ cached) bool { return strings.HasPrefix(name, prefix) && !present[name] })
	sortByAge(records)
	return records, errs
}
