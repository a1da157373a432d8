// Package whereabouts compares ours with whereabouts' own packages on random
// input: the configuration, the bounds of a range and the choice of an address.
// If ours differs on purpose, the test says why.
package whereabouts

import (
	"os"
	"testing"

	"github.com/k8snetworkplumbingwg/whereabouts/pkg/logging"
)

func TestMain(m *testing.M) {
	logging.SetLogStderr(false)
	os.Exit(m.Run())
}
