// Package whereabouts holds ours against whereabouts' own packages on random
// input: the configuration, the bounds of a range and the choice of an
// address. Where ours is meant to differ, the test says why.
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
