package page

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/pcie"
)

// pciBus is a sysfs with PCI functions.
type pciBus struct {
	t   *testing.T
	sys string
}

// add adds a function. path has the host bridge and the bridges above it.
func (b *pciBus) add(address, class, vendor string, numa int, path ...string) {
	b.t.Helper()
	at := filepath.Join(append([]string{"devices"}, append(path, address)...)...)
	bus := filepath.Join(b.sys, "bus/pci/devices")
	err := errors.Join(os.MkdirAll(filepath.Join(b.sys, at), 0o755), os.MkdirAll(bus, 0o755), os.Symlink(filepath.Join("../../..", at), filepath.Join(bus, address)))
	for file, text := range map[string]string{"class": class, "vendor": vendor, "device": "0x1021", "numa_node": fmt.Sprint(numa)} {
		err = errors.Join(err, os.WriteFile(filepath.Join(b.sys, at, file), []byte(text+"\n"), 0o600))
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// trainingNode returns a machine with eight GPUs and eight NICs below four switches, and with two
// further NICs.
func trainingNode(t *testing.T) *inventory.NICList {
	t.Helper()
	bus := &pciBus{t: t, sys: t.TempDir()}
	list := &inventory.NICList{}
	for s := range 4 {
		bridge := 0x10 + 0x30*s
		up := []string{fmt.Sprintf("pci0000:%02x", bridge), fmt.Sprintf("0000:%02x:01.0", bridge), fmt.Sprintf("0000:%02x:00.0", bridge+1)}
		for i := range 2 {
			numa, rail := s/2, 2*s+i
			gpu, nic := fmt.Sprintf("0000:%02x:00.0", bridge+3+i), fmt.Sprintf("0000:%02x:00.0", bridge+8+i)
			bus.add(gpu, "0x030200", "0x10de", numa, append(up[:3:3], fmt.Sprintf("0000:%02x:%02x.0", bridge+2, i))...)
			bus.add(nic, "0x020000", "0x15b3", numa, append(up[:3:3], fmt.Sprintf("0000:%02x:%02x.0", bridge+2, 8+i))...)
			n := inventory.NIC{
				Name: fmt.Sprintf("ens%dnp0", 12+rail), PCI: nic, Kind: inventory.PF, NUMA: &numa, Rail: &rail, Driver: "mlx5_core", Mbps: 400000, Link: inventory.LinkUp,
				Ports: []inventory.Port{{Device: fmt.Sprintf("mlx5_%d", rail), Port: 1, State: "ACTIVE"}},
			}
			if rail < 5 {
				n.Lent = &inventory.Lent{Pod: "training/llama-worker-" + fmt.Sprint(rail/4), IfName: "net1"}
			}
			list.NICs = append(list.NICs, n)
		}
	}
	down, shared := &list.NICs[3], &list.NICs[6]
	down.Link, down.Ports[0].State = inventory.LinkDown, "DOWN"
	shared.Children = 3
	for i := range 2 {
		address, numa := fmt.Sprintf("0000:02:00.%d", i), 0
		bus.add(address, "0x020000", "0x8086", 0, "pci0000:00", "0000:00:1c.0")
		list.NICs = append(list.NICs, inventory.NIC{Name: fmt.Sprintf("eno%d", i+1), PCI: address, NUMA: &numa, Driver: "ice", Mbps: 25000, Link: inventory.LinkUp, Protected: "a default route of the host leaves by it"})
	}
	var err error
	if list.Tree, err = pcie.Read(bus.sys); err != nil {
		t.Fatal(err)
	}
	list.GPUs = list.Tree.GPUs()
	return list
}

// texts returns the texts in an SVG, each after "name: " with the name of its element. It fails the
// test if the SVG is not XML, or if it loads or runs something.
func texts(t *testing.T, svg []byte) []string {
	t.Helper()
	var found []string
	element := ""
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, svg)
		}
		switch x := token.(type) {
		case xml.StartElement:
			element = x.Name.Local
			if element == "script" || element == "image" || element == "a" || element == "use" {
				t.Errorf("it has an element %s", element)
			}
			for _, a := range x.Attr {
				if strings.HasPrefix(a.Name.Local, "on") || a.Name.Local == "href" {
					t.Errorf("it has the attribute %s", a.Name.Local)
				}
			}
		case xml.CharData:
			if text := strings.TrimSpace(string(x)); text != "" {
				found = append(found, element+": "+text)
			}
		}
	}
}

func TestPictureHasEachDeviceInItsSwitch(t *testing.T) {
	list := trainingNode(t)
	svg := Topology(list, "GPUs and NICs of node-1", "")
	shown := strings.Join(texts(t, svg), "\n")
	order := []string{
		"GPUs and NICs of node-1", "NUMA node 0", "host bridge 0000:10", "PCIe switch 0000:11:00.0", "GPU0", "GPU1",
		"rail 0 · ens12np0", "0000:18:00.0", "mlx5_0/1 ACTIVE", "400G link up", "→ training/llama-worker-0", "rail 1 · ens13np0", "host bridge 0000:40", "GPU3", "rail 3", "mlx5_3/1 DOWN", "host bridge 0000:00", "eno1", "eno2",
		"NUMA node 1", "PCIe switch 0000:71:00.0", "GPU4", "PCIe switch 0000:a1:00.0", "GPU7", "rail 6 · ens18np0", "3 child interface(s)", "rail 7 · ens19np0",
	}
	at := 0
	for _, want := range order {
		i := strings.Index(shown[at:], want)
		if i < 0 {
			t.Fatalf("%q is not there, or not in its place:\n%s", want, shown)
		}
		at += i
	}
	for class, want := range map[string]int{`class="nic lent"`: 4, `class="nic down lent"`: 1, `class="gpu"`: 8, `class="switch"`: 4, `class="numa"`: 2} {
		if have := bytes.Count(svg, []byte(class)); have != want {
			t.Errorf("%d of %s, not %d", have, class, want)
		}
	}
}

func TestPictureShowsHostileNamesAsText(t *testing.T) {
	const evil = `"><script>x</script>&`
	list := &inventory.NICList{Tree: &pcie.Tree{}, NICs: []inventory.NIC{{
		Name: evil + "\x1b\x00\xff\ufffe", Driver: evil, Firmware: evil, Protected: "]]>" + evil, Link: inventory.LinkUp,
		Ports: []inventory.Port{{Device: evil + "\x02", Port: 1, State: "ACTIVE"}},
		Lent:  &inventory.Lent{Pod: evil + "\x07/" + strings.Repeat("long", 100)},
	}}}
	svg := Topology(list, evil, "")
	shown := strings.Join(texts(t, svg), "\n")
	for _, want := range []string{"not on PCI", evil, `\x1b`} {
		if !strings.Contains(shown, want) {
			t.Errorf("%q is not there:\n%s", want, shown)
		}
	}
}

// TestPictureOfAPod: the pod has four of the NICs, and another pod has one.
func TestPictureOfAPod(t *testing.T) {
	list := trainingNode(t)
	const pod = "training/llama-worker-0"
	svg := Topology(list, "node-1", pod)
	shown := texts(t, svg)
	for _, want := range []string{"text: PIX GPU0, GPU1", "text: PIX GPU2, GPU3"} {
		if n := len(slices.DeleteFunc(slices.Clone(shown), func(s string) bool { return s != want })); n != 2 {
			t.Errorf("%d cards have %q, not 2:\n%s", n, want, strings.Join(shown, "\n"))
		}
	}
	if n := bytes.Count(svg, []byte(`class="own"`)); n != 4 {
		t.Errorf("%d NICs are the pod's, not 4", n)
	}
	if all := Topology(list, "node-1", ""); bytes.Contains(all, []byte(`class="own"`)) {
		t.Error("without a pod a NIC stands out")
	}
}

// TestPictureOfAPodShowsItsHostileNameAsText also tests a narrow picture, in which the name is cut.
func TestPictureOfAPodShowsItsHostileNameAsText(t *testing.T) {
	pod := `"><script>x</script>&/` + strings.Repeat("<b>", 200)
	list := &inventory.NICList{Tree: &pcie.Tree{}, NICs: []inventory.NIC{{Name: "ens1", Lent: &inventory.Lent{Pod: pod}}}}
	svg := Topology(list, "node-1", pod)
	shown := strings.Join(texts(t, svg), "\n")
	for _, want := range []string{`node-1 · "><script>x</script>&/<b>`, "text: no GPU"} {
		if !strings.Contains(shown, want) {
			t.Errorf("%q is not there:\n%s", want, shown)
		}
	}
	if m := regexp.MustCompile(`(?m)^text: node-1.*$`).FindString(shown); len(m) > 120 {
		t.Errorf("the title is longer than the picture is wide: %s", m)
	}
}

func TestPictureOfANodeWithoutDevices(t *testing.T) {
	if shown := strings.Join(texts(t, Topology(&inventory.NICList{Tree: &pcie.Tree{}}, "x", "")), "\n"); !strings.Contains(shown, "no GPUs and no NICs") {
		t.Error(shown)
	}
}
