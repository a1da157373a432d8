package nlsocket_test

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/nlsocket"
)

// The kernel refuses a command whose reserved bytes are not 0. Memory that was used before has
// other values than 0.
func TestHeaderOfGenericNetlinkHasNoOtherBytes(t *testing.T) {
	for range 10000 {
		b := bytes.Repeat([]byte{0xff}, 2)
		runtime.KeepAlive(b)
		if got := nlsocket.GenericHeader(14); !bytes.Equal(got, []byte{14, 1, 0, 0}) {
			t.Fatalf("%x", got)
		}
	}
}
