package netconf

import (
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// defaultLinkTimeout bounds ADD's wait for the link if RDMA is required and the configuration has
// no timeout. After each move, links of 200 Gbit/s and more take seconds to train.
const defaultLinkTimeout = 20 * time.Second

// Link has the key of host-device, macvlan and rdma that concerns the interface's link.
type Link struct {
	// LinkTimeout bounds the wait for the carrier and the RDMA port, as a duration: "500ms", "20s".
	// If it is empty, ADD waits 20 s if RDMA is required, and otherwise does not wait. The plugin
	// rdma differs: see [RDMAChained.LinkWait].
	LinkTimeout string `json:"linkTimeout"`
}

// LinkWait is how an ADD waits for the link.
type LinkWait struct {
	Timeout time.Duration
	// Required means that the ADD fails if the link is not up within Timeout.
	Required bool
}

// wait returns how an ADD waits if rdma is the network's value of the key "rdma".
func (l *Link) wait(rdma string) LinkWait {
	required := rdma == RDMARequired
	timeout, err := time.ParseDuration(l.LinkTimeout)
	if err != nil && required {
		timeout = defaultLinkTimeout
	}
	return LinkWait{Timeout: timeout, Required: required && timeout > 0}
}

// complete returns an error if LinkTimeout is not a duration.
func (l *Link) complete() error { return checkDuration("linkTimeout", l.LinkTimeout) }

// checkDuration returns an error if the value of a key is not a duration. An empty value means the
// default.
func checkDuration(key, value string) error {
	if value == "" {
		return nil
	}
	d, err := time.ParseDuration(value)
	if err == nil && d < 0 {
		err = failure.New(failure.InvalidConfig, "a duration cannot be negative")
	}
	return failure.From(err, failure.InvalidConfig, `"%s": %q`, key, value).Cure(`write it as "500ms" or "2s"`)
}
