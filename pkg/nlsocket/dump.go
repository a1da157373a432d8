package nlsocket

import (
	"errors"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RawHeader is the header of a request, and what follows it, in the kernel's form.
type RawHeader []byte

// Len returns the number of bytes.
func (h RawHeader) Len() int { return len(h) }

// Serialize returns the bytes.
func (h RawHeader) Serialize() []byte { return h }

// dumpTries bounds how often a dump that the kernel interrupted is repeated.
// Each try races with one more change of the table; ten in a row do not happen.
const dumpTries = 10

// RetryDump repeats a dump that the kernel marks as inconsistent
// (NLM_F_DUMP_INTR).
func RetryDump[T any](dump func() (T, error)) (T, error) {
	var result T
	var err error
	for range dumpTries {
		result, err = dump()
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			return result, err
		}
	}
	return result, err
}
