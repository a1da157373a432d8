package nlsocket

import (
	"errors"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RawHeader is the header of a request and everything that follows it, in the kernel's binary form.
type RawHeader []byte

// Len returns the number of bytes.
func (h RawHeader) Len() int { return len(h) }

// Serialize returns the bytes.
func (h RawHeader) Serialize() []byte { return h }

// dumpTries bounds how often an interrupted dump is repeated. Each further try is needed only if
// the table changes once more during the dump. Ten such changes in a row do not happen.
const dumpTries = 10

// RetryDump calls dump again while the kernel marks the result as inconsistent (NLM_F_DUMP_INTR),
// at most dumpTries times. It returns the last result.
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
