package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// TestDevicePluginBeginsAndEndsWithTheNodeFile has no kubelet. The protocol with the kubelet is
// tested in pkg/deviceplugin, and with a real kubelet in integration/devices.
func TestDevicePluginBeginsAndEndsWithTheNodeFile(t *testing.T) {
	l := newLab(t)
	l.node.NIC("ens1", l.wire)
	l.alone = true
	kubelet, file := scratch.Dir(t), filepath.Join(t.TempDir(), "node.yaml")
	plugins := filepath.Join(kubelet, "device-plugins")
	if err := os.Mkdir(plugins, 0o750); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	sockets := func() int {
		found, err := filepath.Glob(filepath.Join(plugins, "rail-cni-*.sock"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	const pools = "resources: {pools: [{name: rdma/one, mode: shared, max: 2, select: {ifNames: [ens1]}}, " +
		"{name: rdma/two, mode: shared, max: 2, select: {ifNames: [ens1]}}]}"
	write("paths: []")
	t.Setenv(nodefile.PathEnv, file)
	a := l.start("--kubelet-dir", kubelet, "--devinfo-dir", filepath.Join(kubelet, "devinfo"), "--cdi-dir", "off")
	if n, lines := a.metric("rail_cni_panics_total", "device-plugin"); n != 0 || lines != 1 || sockets() != 0 {
		t.Errorf("without resources there are %d sockets, and %v panics in %d lines", sockets(), n, lines)
	}
	write(pools)
	await(t, "two sockets", 15*time.Second, func() bool { return sockets() == 2 })
	if n, lines := a.metric("rail_cni_resource_registered"); n != 0 || lines != 2 {
		t.Errorf("%v resources of %d are registered without a kubelet", n, lines)
	}
	write("resources: [")
	await(t, "the notice", 15*time.Second, func() bool { return len(a.said("reason=DevicesNotRead")) == 1 })
	if sockets() != 2 {
		t.Error("a node file that cannot be read ended the device plugin")
	}
	a.rests()
	write("paths: []")
	await(t, "the sockets' end", 15*time.Second, func() bool { return sockets() == 0 })
	write(pools)
	await(t, "two sockets", 15*time.Second, func() bool { return sockets() == 2 })
	a.end(syscall.SIGKILL)
	if sockets() != 2 {
		t.Fatal("the kill left no socket, so the test tests nothing")
	}
	a = l.start("--kubelet-dir", kubelet, "--devinfo-dir", "off", "--cdi-dir", "off")
	await(t, "the next one's sockets alone", 15*time.Second, func() bool {
		_, lines := a.metric("rail_cni_resource_registered") // it serves; the killed one's sockets are there at once
		return lines == 2 && sockets() == 2
	})
	if a.end(syscall.SIGTERM); sockets() != 0 {
		t.Error("sockets are left")
	}
}
