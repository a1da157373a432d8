package page

import (
	"bytes"
	"cmp"
	"fmt"
	"html"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/rail-cni/rail-cni/pkg/cell"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/pcie"
)

// The picture of the topology has nested boxes for NUMA nodes, host bridges and switches. The boxes
// contain a card for each GPU and each NIC. For readers who cannot tell the colors apart, a word or
// a kind of line has the same meaning as each color. Lengths are in user units of SVG, which are
// pixels on most screens.
const (
	cardWidth, cardPad = 184.0, 8.0
	cardLine           = 15.0
	gap, pad           = 10.0, 12.0
	headHeight         = 24.0
	letterWidth        = 6.6    // the approximate width of a letter in text of size 11
	maxWidth           = 1240.0 // the maximum width of the boxes in a NUMA node
)

// box is a rectangle that contains cards and then boxes.
type box struct {
	class, title string
	key          string // boxes inside the same box are sorted by this
	boxes        []*box
	cards        []card

	width, height float64
	positions     []point // the positions of the cards and then of the boxes, relative to the corner of this box
}

// point is a position in user units.
type point struct{ x, y float64 }

// card is the card of a GPU or a NIC. Its first line is the name of the device.
type card struct {
	class   string
	lines   []string
	tooltip string
	key     string
	ofPod   bool // true if the NIC is held by the pod that the picture is about
}

func (c card) height() float64 { return 2*cardPad + cardLine*float64(len(c.lines)) }

// Topology returns the picture of a node's GPUs and NICs as an SVG that needs no other files. title names the node. If
// pod is not "", it names a pod as "namespace/name", and the NICs of this pod have a second border.
func Topology(list *inventory.NICList, title, pod string) []byte {
	root := tree(list, pod)
	for _, b := range root.boxes {
		b.arrange(maxWidth)
	}
	width, height := 560.0, pad+34
	for _, b := range root.boxes {
		width = max(width, b.width)
	}
	legend := []string{
		"How far two devices are apart, as nvidia-smi abbreviates it: in the same switch PIX, in the same host bridge PHB (PXB below several switches),",
		"in the same NUMA node NODE, else SYS. A NIC with a thick border is lent. A dashed border: its link is down.",
	}
	if pod != "" {
		title += " · " + pod
		legend = append(legend, "The pod holds the NICs with a second border. Their last line has the nearest GPUs of the node, and how far they are.")
	}
	for _, line := range legend {
		width = max(width, letterWidth*0.9*float64(utf8.RuneCountInString(line)))
	}
	for _, b := range root.boxes {
		b.width = width
		height += b.height + gap
	}
	width += 2 * pad
	height += cardLine*float64(len(legend)) + pad
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" font-family="sans-serif" font-size="11">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, "<style>%s</style>\n", topologyStyle)
	fmt.Fprintln(&b, `<rect class="page" width="100%" height="100%"/>`)
	fmt.Fprintf(&b, `<text class="title" x="%g" y="%g">%s</text>`+"\n", pad, pad+16, html.EscapeString(cell.Cut(cell.Printable(title), int((width-2*pad)/(letterWidth*1.55)))))
	y := pad + 34
	for _, inner := range root.boxes {
		inner.draw(&b, point{pad, y})
		y += inner.height + gap
	}
	if len(root.boxes) == 0 {
		fmt.Fprintf(&b, `<text x="%g" y="%g">no GPUs and no NICs</text>`+"\n", pad, y)
	}
	for i, line := range legend {
		fmt.Fprintf(&b, `<text class="note" x="%g" y="%g">%s</text>`+"\n", pad, y+cardLine*float64(i+1)-2, line)
	}
	fmt.Fprintln(&b, "</svg>")
	return b.Bytes()
}

// topologyStyle is the style sheet with the colors for light and dark pages.
const topologyStyle = `
text { fill: #111 } .note, .head { fill: #444 } .title { font-size: 16px; font-weight: bold } .head { font-weight: bold } .name { font-size: 13px; font-weight: bold }
.page { fill: #fff } .numa { fill: #f4f4f4; stroke: #555 } .bridge { fill: #fff; stroke: #888 } .switch { fill: #eee; stroke: #888 }
.gpu { fill: #d9ecd0; stroke: #3d6b21 } .nic { fill: #fff; stroke: #1f4e79 } .lent { fill: #cfe2f7; stroke-width: 3 } .own { fill: none; stroke: #111 } .down { stroke-dasharray: 5 3 }
@media (prefers-color-scheme: dark) {
text { fill: #eee } .note, .head { fill: #bbb } .page { fill: #111 } .numa { fill: #1b1b1b; stroke: #999 } .bridge { fill: #111; stroke: #777 } .switch { fill: #262626; stroke: #777 }
.gpu { fill: #24401a; stroke: #9ccc7f } .nic { fill: #111; stroke: #7fb3e6 } .lent { fill: #173a5e } .own { stroke: #eee }
}
`

// tree returns a box that contains the boxes with all GPUs and NICs of the node. The NICs of the
// pod are marked.
func tree(list *inventory.NICList, pod string) *box {
	root := &box{}
	for i, g := range list.GPUs {
		root.place(g, g.NUMA, gpuCard(list, i))
	}
	for i := range list.NICs {
		n := &list.NICs[i]
		numa := -1
		if n.NUMA != nil {
			numa = *n.NUMA
		}
		c := nicCard(n)
		if n.LentTo(pod) {
			c.ofPod = true
			c.lines = append(c.lines, nearest(list, n.PCI))
		}
		root.place(list.Tree.ByAddress(n.PCI), numa, c)
	}
	root.sort()
	return root
}

// place puts the card of a device into the right box. d is nil if the device is not on PCI.
func (b *box) place(d *pcie.Device, numa int, c card) {
	title, key := "NUMA node "+strconv.Itoa(numa), fmt.Sprintf("%04d", numa)
	if numa < 0 {
		title, key = "NUMA node not known", "~"
	}
	inner := b.child("numa", title, key)
	switch {
	case d == nil:
		inner = inner.child("bridge", "not on PCI", "~")
	case len(d.Path) > 0:
		inner = inner.child("bridge", "host bridge "+strings.TrimPrefix(d.Path[0], "pci"), d.Path[0])
		// The last bridge is the port that leads to the device itself. It belongs to a switch or to
		// the host bridge. The ports before it come in pairs. The second port of each pair is the
		// upstream port of a switch.
		for i := 2; i < len(d.Path)-1; i += 2 {
			inner = inner.child("switch", "PCIe switch "+d.Path[i], d.Path[i])
		}
	}
	inner.cards = append(inner.cards, c)
}

// child returns the box in b with this key. If there is none, it adds a new box.
func (b *box) child(class, title, key string) *box {
	for _, inner := range b.boxes {
		if inner.key == key {
			return inner
		}
	}
	inner := &box{class: class, title: title, key: key}
	b.boxes = append(b.boxes, inner)
	return inner
}

// sort sorts the cards and boxes in the box. Boxes with GPUs come first. Otherwise they are sorted
// by address.
func (b *box) sort() {
	withoutGPU := func(x *box) int {
		if x.hasGPU() || b.class == "" { // NUMA nodes are sorted by their numbers
			return 0
		}
		return 1
	}
	slices.SortFunc(b.boxes, func(x, y *box) int {
		return cmp.Or(cmp.Compare(withoutGPU(x), withoutGPU(y)), cmp.Compare(x.key, y.key))
	})
	slices.SortStableFunc(b.cards, func(x, y card) int { return cmp.Compare(x.key, y.key) })
	for _, inner := range b.boxes {
		inner.sort()
	}
}

func (b *box) hasGPU() bool {
	return slices.ContainsFunc(b.cards, func(c card) bool { return c.class == gpuClass }) || slices.ContainsFunc(b.boxes, (*box).hasGPU)
}

// arrange sets the sizes and positions of the cards and boxes in the box. It places them in rows. A
// row is not wider than maxWidth. A row has at most two cards, so that a GPU stands beside its NIC.
func (b *box) arrange(maxWidth float64) {
	b.positions = nil
	x, y, right, row := pad, headHeight, 0.0, 0.0
	put := func(width, height float64) {
		if x > pad && x+width+pad > maxWidth {
			x, y, row = pad, y+row+gap, 0
		}
		b.positions = append(b.positions, point{x, y})
		x += width + gap
		row, right = max(row, height), max(right, x-gap)
	}
	for i, c := range b.cards {
		if i > 0 && i%2 == 0 {
			x, y, row = pad, y+row+gap, 0
		}
		put(cardWidth, c.height())
	}
	if len(b.cards) > 0 && len(b.boxes) > 0 {
		x, y, row = pad, y+row+gap, 0
	}
	for _, inner := range b.boxes {
		inner.arrange(maxWidth - 2*pad)
		put(inner.width, inner.height)
	}
	b.width, b.height = max(right, letterWidth*float64(utf8.RuneCountInString(b.title))+pad)+pad, y+row+pad
}

func (b *box) draw(out *bytes.Buffer, p point) {
	fmt.Fprintf(out, `<rect class="%s" x="%g" y="%g" width="%g" height="%g" rx="6"/><text class="head" x="%g" y="%g">%s</text>`+"\n",
		b.class, p.x, p.y, b.width, b.height, p.x+pad, p.y+16, html.EscapeString(b.title))
	for i, c := range b.cards {
		c.draw(out, point{p.x + b.positions[i].x, p.y + b.positions[i].y})
	}
	for i, inner := range b.boxes {
		place := b.positions[len(b.cards)+i]
		inner.draw(out, point{p.x + place.x, p.y + place.y})
	}
}

func (c card) draw(out *bytes.Buffer, p point) {
	fmt.Fprintf(out, `<g><title>%s</title><rect class="%s" x="%g" y="%g" width="%g" height="%g" rx="4"/>`, html.EscapeString(c.tooltip), c.class, p.x, p.y, cardWidth, c.height())
	if c.ofPod {
		const inside = 4.0
		fmt.Fprintf(out, `<rect class="own" x="%g" y="%g" width="%g" height="%g" rx="2"/>`, p.x+inside, p.y+inside, cardWidth-2*inside, c.height()-2*inside)
	}
	for i, line := range c.lines {
		class, letter := "", letterWidth
		if i == 0 {
			class, letter = ` class="name"`, letterWidth*1.25
		}
		fmt.Fprintf(out, `<text%s x="%g" y="%g">%s</text>`, class, p.x+cardPad, p.y+cardPad+11+cardLine*float64(i), html.EscapeString(cell.Cut(line, int((cardWidth-2*cardPad)/letter))))
	}
	fmt.Fprintln(out, "</g>")
}

const gpuClass = "gpu"

func gpuCard(list *inventory.NICList, i int) card {
	g := list.GPUs[i]
	return card{
		class: gpuClass, key: "0 " + g.Address, lines: []string{fmt.Sprintf("GPU%d", i), g.Address},
		tooltip: fmt.Sprintf("GPU%d\n%s\n%s", i, g.Address, strings.Join(g.Path, " → ")),
	}
}

// nicCard returns the card of a NIC. It shows the name and the rail, the address, the RDMA devices
// with their states, the link, and the holder.
func nicCard(n *inventory.NIC) card {
	name := cell.Printable(n.Name)
	if name == "" {
		name = "no netdev"
	}
	if n.Rail != nil {
		name = fmt.Sprintf("rail %d · %s", *n.Rail, name)
	}
	address := n.PCI
	if n.Kind == inventory.VF || n.Kind == inventory.SF {
		address += " " + strings.ToUpper(string(n.Kind))
	}
	c := card{class: "nic", key: "1 " + n.PCI + n.Name, lines: []string{name, address}}
	if len(n.Ports) > 0 {
		c.lines = append(c.lines, cell.Printable(n.PortNames())+" "+n.PortStates())
	}
	state := []string{cell.Speed(n.Mbps)}
	switch {
	case n.AdminDown:
		state = append(state, "set down")
	case n.Link != "":
		state = append(state, "link "+n.Link)
	case n.Name == "":
		state = append(state, n.Driver)
	}
	if text := strings.TrimSpace(strings.Join(state, " ")); text != "" {
		c.lines = append(c.lines, text)
	}
	if n.Link == inventory.LinkDown {
		c.class += " down"
	}
	if n.Lent != nil {
		c.class += " lent"
	}
	if holder := cell.Printable(n.Holder()); holder != "" {
		c.lines = append(c.lines, "→ "+holder)
	}
	more := []string{strings.Join(n.Path, " → "), n.Driver, strings.TrimSpace(n.Model + " " + n.PCIID()), n.Firmware, n.MAC}
	if n.Protected != "" {
		more = append(more, "protected: "+n.Protected)
	}
	c.tooltip = strings.Join(slices.DeleteFunc(append(slices.Clone(c.lines), more...), func(s string) bool { return s == "" }), "\n")
	return c
}

// nearest returns a text with the distance of the GPUs that are nearest to a PCI function, and with
// their names.
func nearest(list *inventory.NICList, pci string) string {
	var names []string
	var best pcie.Distance
	for i, g := range list.GPUs {
		d := list.Tree.Distance(pci, g.Address)
		if len(names) > 0 && d > best {
			continue
		}
		if d < best {
			names = nil
		}
		best, names = d, append(names, fmt.Sprintf("GPU%d", i))
	}
	if names == nil {
		return "no GPU"
	}
	return best.String() + " " + strings.Join(names, ", ")
}
