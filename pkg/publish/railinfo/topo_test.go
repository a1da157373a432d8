package railinfo

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/pcie/pcietest"
)

// The limits of NCCL's parser (src/graph/xml.h).
const (
	maxText     = 255 // MAX_STR_LEN
	maxAttrs    = 16  // MAX_ATTR_COUNT
	maxChildren = 32  // MAX_SUBS of the versions that have the least
	maxNodes    = 256 // of the versions that have the least
)

// mayHave lists which elements NCCL knows below which element. NCCL ignores others, so a misplaced
// element would be lost.
var mayHave = map[string][]string{
	"": {"system"}, "system": {"cpu"}, "cpu": {"pci", "nic"}, "pci": {"pci", "gpu", "nic", "pcilink"}, "gpu": {"nvlink", "c2c"}, "nic": {"net"},
}

// parser reads the XML by NCCL's rules, character by character (xml.cc, 2.30).
type parser struct {
	text  string
	nodes int
}

func (p *parser) char() (byte, error) {
	if p.text == "" {
		return 0, io.ErrUnexpectedEOF
	}
	c := p.text[0]
	p.text = p.text[1:]
	return c, nil
}

// token reads a name, and its value if there is one. last is the character after it.
func (p *parser) token() (name, value string, hasValue bool, last byte, err error) {
	for {
		c, err := p.char()
		if err != nil {
			return "", "", false, 0, err
		}
		if c == '=' {
			value, last, err := p.value()
			return name, value, true, last, err
		}
		if len(name) == maxText-1 {
			return "", "", false, 0, fmt.Errorf("name %s is too long", name)
		}
		if strings.IndexByte(" >/\n\r", c) >= 0 {
			return name, "", false, c, nil
		}
		name += string(c)
	}
}

func (p *parser) value() (value string, last byte, err error) {
	quote, err := p.char()
	if err == nil && quote != '"' && quote != '\'' {
		err = fmt.Errorf("expected a quote, got %q", quote)
	}
	for err == nil {
		var c byte
		if c, err = p.char(); err == nil && c == quote {
			last, err = p.char()
			return value, last, err
		}
		if value += string(c); len(value) == maxText-1 {
			err = fmt.Errorf("value %s is too long", value)
		}
	}
	return "", 0, err
}

// element reads an opening or closing tag; end is the name of a closing one.
func (p *parser) element() (n *node, end string, single bool, err error) {
	p.text = strings.TrimLeft(p.text, " \n\r")
	if p.text == "" {
		return nil, "", false, io.EOF
	}
	if c, _ := p.char(); c != '<' {
		return nil, "", false, fmt.Errorf("expected '<', got %q", c)
	}
	name, _, _, last, err := p.token()
	if err != nil {
		return nil, "", false, err
	}
	if name == "" && last == '/' {
		end, _, _, last, err = p.token()
		if err == nil && last != '>' {
			err = fmt.Errorf("trailing %q in a closing tag", last)
		}
		return nil, end, false, err
	}
	n = &node{name: name}
	for last == ' ' {
		var key, value string
		var has bool
		if key, value, has, last, err = p.token(); err != nil {
			return nil, "", false, err
		}
		if !has || key == "" {
			return nil, "", false, fmt.Errorf("attribute %q of %s has no value", key, name)
		}
		n.attrs = append(n.attrs, attr{key, value})
	}
	if len(n.attrs) > maxAttrs {
		return nil, "", false, fmt.Errorf("%s has %d attributes", name, len(n.attrs))
	}
	if last == '/' {
		single = true
		_, _, _, last, err = p.token()
	}
	if err == nil && last != '>' {
		err = fmt.Errorf("expected '>', got %q", last)
	}
	return n, "", single, err
}

// children reads the elements below a parent up to its end.
func (p *parser) children(parent *node) error {
	for {
		n, end, single, err := p.element()
		switch {
		case errors.Is(err, io.EOF) && parent.name == "":
			return nil
		case err != nil:
			return fmt.Errorf("in %q: %w", parent.name, err)
		case n == nil && end == parent.name:
			return nil
		case n == nil:
			return fmt.Errorf("%s ends %s", end, parent.name)
		case !slices.Contains(mayHave[parent.name], n.name):
			return fmt.Errorf("%s in %q would be ignored", n.name, parent.name)
		}
		parent.children = append(parent.children, n)
		if p.nodes++; p.nodes > maxNodes || len(parent.children) > maxChildren {
			return errors.New("too many elements")
		}
		if !single {
			if err := p.children(n); err != nil {
				return err
			}
		}
	}
}

// parse returns the element system. It returns an error if something is missing that NCCL needs.
func parse(text []byte) (*node, error) {
	p := &parser{text: string(text)}
	document := &node{}
	if err := p.children(document); err != nil {
		return nil, err
	}
	if len(document.children) != 1 || document.children[0].get("version") != "1" {
		return nil, errors.New("no system of version 1")
	}
	return document.children[0], checkAttrs(document.children[0])
}

// checkAttrs returns an error if an element lacks an attribute without which NCCL would fail, or
// has such an attribute that is not a number.
func checkAttrs(n *node) error {
	needs := map[string][]string{"cpu": {"numaid", "arch", "vendor", "familyid", "modelid"}, "pci": {"busid", "class"}, "net": {"name", "port"}}
	for _, key := range needs[n.name] {
		if n.get(key) == "" {
			return fmt.Errorf("%s has no %s", n.name, key)
		}
	}
	for _, key := range []string{"numaid", "familyid", "modelid", "speed", "port", "gdr", "rail", "link_width", "class", "vendor", "device", "guid"} {
		if text := n.get(key); text != "" && text != "GenuineIntel" {
			if _, err := strconv.ParseUint(strings.TrimPrefix(text, "-"), 0, 64); err != nil {
				return fmt.Errorf("%s: %s: %w", n.name, key, err)
			}
		}
	}
	for _, c := range n.children {
		if err := checkAttrs(c); err != nil {
			return err
		}
	}
	return nil
}

// shape returns the structure of an element without addresses and names: "pci(gpu)" …, with
// the children sorted, and NUMA nodes and speeds.
func shape(n *node) string {
	text := n.name
	switch n.name {
	case "cpu":
		text += n.get("numaid")
	case "net":
		text += n.get("speed")
	}
	if len(n.children) == 0 {
		return text
	}
	var parts []string
	for _, c := range n.children {
		parts = append(parts, shape(c))
	}
	slices.Sort(parts)
	return text + "(" + strings.Join(parts, " ") + ")"
}

// repeat returns the text n times, with spaces between.
func repeat(n int, text string) string {
	return strings.TrimSuffix(strings.Repeat(text+" ", n), " ")
}

// The structures are from three published files for NCCL: Azure's file for ND H100 v5 (each GPU has
// a separate switch with its InfiniBand NIC), the file of the DGX and HGX H100 boards (four
// switches with two GPUs and two NICs each), and Oracle's file for BM.GPU.H100.8 (below each switch
// one GPU, and the two functions of a NIC).
func TestTopologyHasTheStructureOfPublishedOnes(t *testing.T) {
	const gpu, net = "pci(gpu)", "pci(nic(net400000))"
	for _, c := range []struct {
		name         string
		perNUMA      int // switches
		gpus, cards  int // below each switch
		functions    int // of each card
		class        uint32
		layer, wants string // what is below each switch
	}{
		{"ND H100 v5", 4, 1, 1, 1, pcietest.ClassIB, InfiniBand, gpu + " " + net},
		{"HGX H100", 2, 2, 2, 1, pcietest.ClassRoCE, "Ethernet", repeat(2, gpu) + " " + repeat(2, net)},
		{"BM.GPU.H100.8", 4, 1, 1, 2, pcietest.ClassRoCE, "Ethernet", gpu + " " + repeat(2, net)},
	} {
		t.Run(c.name, func(t *testing.T) {
			var functions []pcietest.Function
			var nics []string
			bus := 0
			next := func() int { bus++; return bus }
			for numa := range 2 {
				for range c.perNUMA {
					port := fmt.Sprintf("pci%04x:00/%04x:00:01.0", next(), bus)
					domain := bus
					up := fmt.Sprintf("%s/%04x:01:00.0", port, domain)
					down := func() string { d := next(); return fmt.Sprintf("%s/%04x:02:%02x.0", up, domain, d%32) }
					for range c.gpus {
						functions = append(functions, pcietest.Function{Path: fmt.Sprintf("%s/%04x:%02x:00.0", down(), domain, bus), Class: pcietest.ClassGPU, NUMA: numa})
					}
					for range c.cards {
						at := down()
						for f := range c.functions {
							address := fmt.Sprintf("%04x:%02x:00.%d", domain, bus, f)
							functions = append(functions, pcietest.Function{Path: at + "/" + address, Class: c.class, NUMA: numa})
							nics = append(nics, address)
						}
					}
				}
			}
			m := machineOf(t, functions...)
			text := railsAt(m, c.layer, nics...).TopoXML(m)
			system, err := parse(text)
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			below := repeat(c.perNUMA, "pci("+c.wants+")")
			if got, want := shape(system), "system(cpu0("+below+") cpu1("+below+"))"; got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestTopologyOfANICWithoutGPU(t *testing.T) {
	m := machineOf(t, pcietest.Function{Path: "pci0000:00/0000:00:05.0", Class: pcietest.ClassRoCE, NUMA: -1, Files: map[string]string{"max_link_speed": "Unknown", "max_link_width": "255"}})
	pcietest.Write(t, m.Root, "sys/module/nvidia_peermem/version", "1\n")
	r := railsAt(m, "Ethernet", "0000:00:05.0")
	r.Rails[0].SpeedMbps = 0
	r.Rails = append(r.Rails, r.Rails[0]) // another macvlan on it
	got := string(r.TopoXML(m))
	const want = `<system version="1">
  <cpu numaid="-1" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:00:05.0" class="0x020000" vendor="0x15b3" device="0x1021" link_width="255">
      <nic>
        <net name="mlx5_0" port="1" guid="0x3412feff005450" gdr="1" rail="0"/>
      </nic>
    </pci>
  </cpu>
</system>
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if _, err := parse([]byte(got)); err != nil {
		t.Error(err)
	}
}

func TestNoTopologyWithoutAPCIFunction(t *testing.T) {
	m := machineOf(t)
	r := railsAt(m, "Ethernet", "0000:00:05.0")
	if got := r.TopoXML(m); got != nil {
		t.Errorf("got %s", got)
	}
}

// A function without RDMA is useless to NCCL, but NCCL would not remove it.
func TestTopologyHasOnlyRailsWithRDMA(t *testing.T) {
	m := machineOf(t, pcietest.Function{Path: "pci0000:00/0000:00:05.0", Class: pcietest.ClassRoCE}, pcietest.Function{Path: "pci0000:00/0000:00:06.0", Class: pcietest.ClassRoCE})
	r := railsAt(m, "Ethernet", "0000:00:05.0", "0000:00:06.0")
	r.Rails[1].RDMA = ""
	if text := string(r.TopoXML(m)); strings.Contains(text, "00:06.0") {
		t.Error(text)
	}
}

func TestFamilyOfACPUIsNCCLs(t *testing.T) {
	for kernel, nccl := range map[int]int{6: 6, 15: 15, 23: 143, 25: 175} {
		if got := ncclFamily(kernel); got != nccl {
			t.Errorf("family %d: got %d, want %d", kernel, got, nccl)
		}
	}
}
