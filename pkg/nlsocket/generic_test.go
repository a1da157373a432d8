package nlsocket_test

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/nlsocket"
)

// The kernel refuses a command with reserved bytes that are not 0. Memory that was used
// before has other values.
func TestHeaderOfGenericNetlinkHasNoOtherBytes(t *testing.T) {
	for range 10000 {
		b := bytes.Repeat([]byte{0xff}, 2)
		runtime.KeepAlive(b)
		if got := nlsocket.GenericHeader(14); !bytes.Equal(got, []byte{14, 1, 0, 0}) {
			t.Fatalf("%x", got)
		}
	}
}
