package devices

import (
	"fmt"
	"os"
	"testing"

	"github.com/rail-cni/rail-cni/integration/devices/nicplugin"
)

func TestMain(m *testing.M) {
	nicplugin.Asked()
	code := m.Run()
	if err := endLab(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
