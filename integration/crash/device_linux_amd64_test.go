package crash

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/devices/nicplugin"
	"github.com/rail-cni/rail-cni/integration/need"
)

// devices is a node with a device plugin.
type devices struct {
	t       *testing.T
	kubelet *kubelet
	plugin  *nicplugin.Plugin
	began   time.Time
}

// byItself is the recovery by another device plugin, which the node starts.
const byItself = "the next device plugin"

func (d *devices) begin() program {
	d.began = time.Now()
	d.kubelet = newKubelet(d.t)
	d.plugin = nicplugin.New(d.t, d.kubelet.dir, d.t.TempDir(), nicplugin.NodeFile,
		fmt.Sprintf("resources: {cdi: true, pools: [{name: %s, mode: exclusive, select: {rdma: true}}]}", deviceResource))
	args, env := d.plugin.Command()
	return program{args: args, env: append(os.Environ(), env...)}
}

// recover starts the next device plugin, which must serve its resource and leave nothing
// of the former one.
func (d *devices) recover(_ string, o outcome) (lost []string) {
	d.t.Helper()
	if took := time.Since(d.began); took > 10*time.Second {
		d.t.Logf("disturbed at %q the device plugin ended after %v", o.at, took.Round(time.Millisecond))
	}
	defer d.plugin.Kill()
	d.kubelet.scenarios.Wait() // with the killed one
	for len(d.kubelet.once) > 0 {
		if err := <-d.kubelet.once; err != nil {
			d.t.Logf("with the one that was disturbed: %v", err)
		}
	}
	d.kubelet.give(nil)
	d.plugin.Age()
	d.plugin.Start()
	timeout := time.After(hang)
	for served := false; !served; {
		select {
		case err := <-d.kubelet.once:
			// The end of a connection to the killed one may come late.
			served = err == nil
			if err != nil {
				d.t.Logf("a registration failed: %v", err)
			}
		case <-timeout:
			return append(lost, "no device plugin served its resource again")
		}
	}
	d.plugin.AwaitEnd()
	d.plugin.Age()
	d.kubelet.watchOnly()
	d.plugin.Start() // it removes what the others wrote last
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		left := d.left()
		if len(left) == 0 {
			return lost
		}
		if time.Since(began) > hang {
			return append(lost, "left: "+strings.Join(left, ", "))
		}
	}
}

// left returns what is left over while a device plugin runs that nobody uses.
func (d *devices) left() (left []string) {
	d.t.Helper()
	files := d.plugin.Files()
	if !slices.Equal(files, []string{"cdi/rail-cni.io-nic.json"}) {
		left = append(left, fmt.Sprint(files))
	}
	entries, err := os.ReadDir(filepath.Join(d.kubelet.dir, "device-plugins"))
	if err != nil {
		d.t.Fatal(err)
	}
	var sockets []string
	for _, e := range entries {
		sockets = append(sockets, e.Name())
	}
	if len(sockets) != 2 { // the kubelet's and that of the running one
		left = append(left, fmt.Sprint(sockets))
	}
	return left
}

// TestDevicesAreOfferedAgainWhereTheDevicePluginIsKilled kills the device plugin at each
// change from its start, by its registration and an Allocate, to its end, or makes the
// change fail.
func TestDevicesAreOfferedAgainWhereTheDevicePluginIsKilled(t *testing.T) {
	need.Root(t)
	modes := []mode{{whole: true, recovery: byItself}}
	for _, e := range injected {
		modes = append(modes, mode{errno: e, recovery: byItself})
	}
	for _, m := range modes {
		t.Run(m.String(), func(t *testing.T) {
			t.Parallel()
			sweep(t, &devices{t: t}, "device plugin", "Allocate", m, sample, enough).report(t)
		})
	}
}
