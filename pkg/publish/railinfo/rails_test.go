package railinfo

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/pcie/pcietest"
)

func TestRailsAreInOrder(t *testing.T) {
	n := func(i int) *int { return &i }
	r := &Rails{Rails: []Rail{{IfName: "net9"}, {Rail: n(1), IfName: "net2"}, {IfName: "net0"}, {Rail: n(0), IfName: "net8"}, {Rail: n(1), IfName: "net1"}}}
	r.Sort()
	var got []string
	for _, l := range r.Rails {
		got = append(got, l.IfName)
	}
	if want := []string{"net8", "net1", "net2", "net0", "net9"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// sixteen returns a pod with 16 rails, each with two addresses, and 8 GPUs with UUIDs.
func sixteen(t *testing.T) *Rails {
	var functions []pcietest.Function
	var nics []string
	for i := range 16 {
		up := fmt.Sprintf("pci%04x:00/%04x:00:01.0/%04x:01:00.0", i, i, i)
		functions = append(functions, pcietest.Function{Path: fmt.Sprintf("%s/%04x:02:00.0/%04x:03:00.0", up, i, i), Class: pcietest.ClassRoCE, NUMA: i / 8})
		nics = append(nics, fmt.Sprintf("%04x:03:00.0", i))
		if i%2 == 0 {
			functions = append(functions, pcietest.Function{Path: fmt.Sprintf("%s/%04x:02:01.0/%04x:04:00.0", up, i, i), Class: pcietest.ClassGPU, NUMA: i / 8})
		}
	}
	r := railsAt(machineOf(t, functions...), "Ethernet", nics...)
	for i := range r.Rails {
		l := &r.Rails[i]
		l.GIDs = entries(0, "fe80::5054:ff:fe12:3456", both...)
		withAddress(l, fmt.Sprintf("10.100.%d.117", 100+i), 2, both...)
		withAddress(l, fmt.Sprintf("fd00:1234:5678:%x::117", i), 4, both...)
		l.Gateway = fmt.Sprintf("10.100.%d.1", 100+i)
		for g := range l.GPUs {
			l.GPUs[g].UUID = "GPU-7d3c2a5e-1b4f-4c8d-9e0a-2f6b8c1d3e5f"
		}
	}
	return r
}

func TestAnnotationIsSmall(t *testing.T) {
	r := sixteen(t)
	data := r.Compact()
	if len(data) >= maxAnnotation {
		t.Errorf("it has %d bytes", len(data))
	}
	var c Rails
	if err := json.Unmarshal(data, &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Rails) != 16 {
		t.Fatalf("it has %d rails", len(c.Rails))
	}
	for i, l := range c.Rails {
		of := r.Rails[i]
		if l.IfName != of.IfName || l.RDMA != of.RDMA || *l.Rail != *of.Rail || *l.GIDIndexV2 != 3 || !slices.Equal(l.Addresses, of.Addresses) || l.Gateway != of.Gateway {
			t.Errorf("rail %d is %+v", i, l)
		}
		if len(l.GIDs) != 2 || l.GIDs[0].Index != 3 || l.GIDs[1].Index != 5 {
			t.Errorf("rail %d has the GIDs %+v", i, l.GIDs)
		}
		if i%2 == 0 && (len(l.GPUs) != 1 || l.GPUs[0].PCI != fmt.Sprintf("%04x:04:00.0", i)) {
			t.Errorf("rail %d has the GPUs %+v", i, l.GPUs)
		}
	}
}

// If there are more rails than a node has, the longest parts are left out, so that the limit holds.
func TestAnnotationOfManyRailsIsSmallAsWell(t *testing.T) {
	r := sixteen(t)
	r.Rails = slices.Concat(r.Rails, r.Rails, r.Rails, r.Rails)
	if n := len(r.Compact()); n >= maxAnnotation {
		t.Errorf("it has %d bytes", n)
	}
	if r.Rails[0].GPUs == nil || r.Rails[0].GIDs == nil || r.Rails[0].State == "" {
		t.Error("the document itself was shortened")
	}
}

// The state of a port must not change the annotation, because each change causes a request for each
// pod.
func TestAnnotationDoesNotHaveTheState(t *testing.T) {
	r := sixteen(t)
	before := string(r.Compact())
	r.Rails[0].State, r.Generation = "DOWN", 7
	if string(r.Compact()) != before {
		t.Error("it changed")
	}
}

func TestCharDevicesOfAPod(t *testing.T) {
	r := &Rails{Rails: []Rail{{CharDevices: []string{"/dev/infiniband/umad1", "/dev/infiniband/uverbs1"}}, {CharDevices: []string{"/dev/infiniband/uverbs0"}}, {CharDevices: []string{"/dev/infiniband/uverbs1"}}}}
	if got, want := strings.Join(r.CharDevices(), " "), "/dev/infiniband/umad1 /dev/infiniband/uverbs0 /dev/infiniband/uverbs1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
