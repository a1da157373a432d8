package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/pcie"
)

// TestTopologyOfAPod has eight NICs. The pod has the first four, and another pod has one.
func TestTopologyOfAPod(t *testing.T) {
	const pod = "training/llama-worker-0"
	list := &inventory.NICList{Tree: &pcie.Tree{}, GPUs: make([]*pcie.Device, 8)}
	for i := range list.GPUs {
		list.GPUs[i] = &pcie.Device{}
	}
	for rail := range 8 {
		n := inventory.NIC{Name: fmt.Sprintf("ens%dnp0", 12+rail), PCI: fmt.Sprintf("0000:%02x:00.0", 0x40+rail)}
		if rail < 5 {
			n.Lent = &inventory.Lent{Pod: "training/llama-worker-" + fmt.Sprint(rail/4)}
		}
		list.NICs = append(list.NICs, n)
	}
	var short []string
	for _, p := range places(list, pod) {
		short = append(short, p.short)
	}
	if got := strings.Join(short, " "); got != "GPU0 GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 GPU7 NIC0 NIC1 NIC2 NIC3" {
		t.Errorf("the matrix has %s", got)
	}
	if err := checkHolds(list, pod); err != nil {
		t.Error(err)
	}
	if err := checkHolds(list, "training/other\x1b"); err == nil || !strings.Contains(err.Error(), "railctl show") || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("another pod: %v", err)
	}
}

func TestTopologyWritesThePictureToAFileOrStdout(t *testing.T) {
	l := newLab(t)
	file := filepath.Join(t.TempDir(), "node.svg")
	for _, args := range [][]string{{"--svg"}, {"--svg=-"}, {"--svg", "-"}, {"--svg", file}, {"--svg=" + file}} {
		out, errOut, code := l.railctl(append([]string{"topology"}, args...)...)
		if args[len(args)-1] == file || args[0] == "--svg="+file {
			if out != "" {
				t.Errorf("%v: stdout %q", args, out)
			}
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			out = string(data)
			_ = os.Remove(file)
		}
		if code != 0 || errOut != "" || !strings.HasPrefix(out, "<svg ") {
			t.Errorf("%v: exit code %d, stderr %q\n%s", args, code, errOut, out)
		}
	}
	if _, errOut, code := l.railctl("topology", "--pod", "default/nobody", "--svg"); code != 1 || !strings.Contains(errOut, "default/nobody") {
		t.Errorf("a pod without a NIC: exit code %d, stderr %q", code, errOut)
	}
	for _, args := range [][]string{{"x"}, {"--svg", "x", "y"}, {"--svg=x", "y"}} {
		if _, errOut, code := l.railctl(append([]string{"topology"}, args...)...); code != 1 || !strings.Contains(errOut, "unknown argument") {
			t.Errorf("%v: exit code %d, stderr %q", args, code, errOut)
		}
	}
}
