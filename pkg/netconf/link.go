package netconf

import (
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// defaultLinkTimeout bounds ADD's wait for the link if RDMA is required and the
// configuration has no timeout. Links of 200 Gbit/s and more take seconds to train after
// each move.
const defaultLinkTimeout = 20 * time.Second

// Link has the key of host-device, macvlan and rdma about the interface's link.
type Link struct {
	// LinkTimeout bounds the wait for the carrier and the RDMA port, as a duration:
	// "500ms", "20s". Empty means 20 s if RDMA is required, else no wait. For rdma see
	// [RDMAChained.LinkWait].
	LinkTimeout string `json:"linkTimeout"`
}

// LinkWait is how an ADD waits for the link.
type LinkWait struct {
	Timeout time.Duration
	// Required: the ADD fails if the link is not up within Timeout.
	Required bool
}

// wait returns the wait for a network with this value of the key "rdma".
func (l *Link) wait(rdma string) LinkWait {
	required := rdma == RDMARequired
	timeout, err := time.ParseDuration(l.LinkTimeout)
	if err != nil && required {
		timeout = defaultLinkTimeout
	}
	return LinkWait{Timeout: timeout, Required: required && timeout > 0}
}

// complete returns an error if a value is not a duration.
func (l *Link) complete() error { return checkDuration("linkTimeout", l.LinkTimeout) }

// checkDuration returns an error if the value of a key is not a duration. Empty is the
// default.
func checkDuration(key, value string) error {
	if value == "" {
		return nil
	}
	d, err := time.ParseDuration(value)
	if err == nil && d < 0 {
		err = failure.New(failure.InvalidConfig, "it is negative")
	}
	return failure.From(err, failure.InvalidConfig, `"%s": %q`, key, value).Cure(`write it as "500ms" or "2s"`)
}
