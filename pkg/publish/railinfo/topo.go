package railinfo

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/pcie"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

// Machine has the PCI tree, and the paths of the files about the PCI devices and the CPUs.
type Machine struct {
	Tree *pcie.Tree
	Root string // the directory that contains sys and proc: "/" except in tests
}

// node is an element of NCCL's XML.
type node struct {
	name     string
	attrs    []attr
	children []*node
}

type attr struct{ key, value string }

// add adds an attribute, unless its value is unknown.
func (n *node) add(key, value string) {
	if value != "" {
		n.attrs = append(n.attrs, attr{key, value})
	}
}

func (n *node) get(key string) string {
	for _, a := range n.attrs {
		if a.key == key {
			return a.value
		}
	}
	return ""
}

// topology is the tree of elements while it is built.
type topology struct {
	Machine
	system *node
	byPCI  map[string]*node
	cpus   map[int]*node
}

// TopoXML returns the topology of the rails with RDMA and of the node's GPUs, in NCCL's XML of
// version 1 (src/graph/xml.cc, for NCCL_TOPO_FILE). It returns nil if no such rail has a PCI
// function. NCCL removes what it does not find in the container, and adds what is missing: the
// indexes of GPUs and networks, NVLink, and whether a NIC reaches the memory of GPUs by DMA-BUF.
// NCCL does not check the values in the file.
func (r *Rails) TopoXML(m Machine) []byte {
	t := &topology{Machine: m, system: &node{name: "system"}, byPCI: map[string]*node{}, cpus: map[int]*node{}}
	t.system.add("version", "1")
	known := false
	for i := range r.Rails {
		l := &r.Rails[i]
		if l.RDMA == "" || m.Tree.ByAddress(l.PCI) == nil {
			continue
		}
		known = true
		t.net(t.pci(l.PCI), l)
	}
	if !known {
		return nil
	}
	for _, gpu := range m.Tree.GPUs() {
		parent := t.pci(gpu.Address)
		parent.children = append(parent.children, &node{name: "gpu"})
	}
	t.system.sort()
	var b bytes.Buffer
	t.system.write(&b, "")
	return b.Bytes()
}

// pci returns the element of a PCI function. It makes the elements above the function as NCCL does
// (ncclTopoGetXmlFromSys): the parent of a function is the second bridge above it, such as the
// upstream port of a switch. Without a second bridge the parent is the CPU.
func (t *topology) pci(address string) *node {
	if n := t.byPCI[address]; n != nil {
		return n
	}
	n := &node{name: "pci"}
	n.add("busid", address)
	t.byPCI[address] = n
	d := t.Tree.ByAddress(address)
	if d == nil { // possible only if the tree has changed
		t.cpu(-1).children = append(t.cpu(-1).children, n)
		return n
	}
	n.add("class", fmt.Sprintf("0x%06x", d.Class))
	n.add("vendor", fmt.Sprintf("0x%04x", d.Vendor))
	n.add("device", fmt.Sprintf("0x%04x", d.Device))
	bridges := bridgesOf(d.Path)
	speed, width := t.slowest(address, bridges)
	n.add("link_speed", speed)
	n.add("link_width", width)
	var parent *node
	if len(bridges) >= 2 {
		parent = t.pci(bridges[len(bridges)-2])
	} else {
		parent = t.cpu(d.NUMA)
	}
	parent.children = append(parent.children, n)
	return n
}

// slowest returns the speed and width of the function's link. Each is the smaller of the function's
// own value and the value of the bridge above it.
func (t *topology) slowest(address string, bridges []string) (speed, width string) {
	read := func(address, file string) string {
		text, err := os.ReadFile(filepath.Join(t.Root, "sys/bus/pci/devices", address, file))
		if err != nil {
			return ""
		}
		value := strings.TrimSpace(string(text))
		if number, _, _ := strings.Cut(value, " "); !startsWithDigit(number) {
			return "" // "Unknown", in a virtual machine
		}
		return value
	}
	least := func(file string) string {
		value := read(address, file)
		if len(bridges) == 0 {
			return value
		}
		above := read(bridges[len(bridges)-1], file)
		if value == "" || above != "" && leading(above) < leading(value) {
			return above
		}
		return value
	}
	return least("max_link_speed"), least("max_link_width")
}

func startsWithDigit(s string) bool { return s != "" && s[0] >= '0' && s[0] <= '9' }

// leading returns the number that the text begins with.
func leading(text string) float64 {
	number, _, _ := strings.Cut(text, " ")
	f, _ := strconv.ParseFloat(number, 64)
	return f
}

// maxValue is the length from which NCCL refuses a value (MAX_STR_LEN).
const maxValue = 254

// cpu returns the element of the CPU of a NUMA node. numa is -1 if the node is unknown. NCCL always
// needs the CPU's architecture.
func (t *topology) cpu(numa int) *node {
	if n := t.cpus[numa]; n != nil {
		return n
	}
	n := &node{name: "cpu"}
	n.add("numaid", strconv.Itoa(numa))
	text, _ := os.ReadFile(filepath.Join(t.Root, fmt.Sprintf("sys/devices/system/node/node%d/cpumap", numa)))
	if affinity := strings.TrimSpace(string(text)); len(affinity) < maxValue {
		n.add("affinity", affinity)
	}
	t.addModel(n)
	t.cpus[numa] = n
	t.system.children = append(t.system.children, n)
	return n
}

// addModel adds the architecture of the machine, and the vendor and model of an x86 CPU.
func (t *topology) addModel(n *node) {
	arch := map[string]string{"amd64": "x86_64", "arm64": "arm64", "ppc64le": "ppc64"}[runtime.GOARCH]
	n.add("arch", arch)
	if arch != "x86_64" {
		return
	}
	facts := map[string]string{}
	text, _ := os.ReadFile(filepath.Join(t.Root, "proc/cpuinfo"))
	for line := range strings.Lines(string(text)) {
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			if len(facts) > 0 {
				break // the next CPU
			}
			continue
		}
		facts[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	n.add("vendor", cmp.Or(facts["vendor_id"], "unknown"))
	n.add("familyid", strconv.Itoa(ncclFamily(number(facts["cpu family"]))))
	n.add("modelid", strconv.Itoa(number(facts["model"])))
}

func number(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}

// ncclFamily returns NCCL's number for a CPU family. CPUID has two parts of the family. The kernel
// adds the extended part to the base part, 15. NCCL multiplies the extended part by sixteen.
func ncclFamily(family int) int {
	const base = 15
	if family < base {
		return family
	}
	return base + (family-base)<<4
}

// net adds the network of a rail to the NIC's function.
func (t *topology) net(pci *node, l *Rail) {
	var nic *node
	if i := slices.IndexFunc(pci.children, func(n *node) bool { return n.name == "nic" }); i >= 0 {
		nic = pci.children[i]
	} else {
		nic = &node{name: "nic"}
		pci.children = append(pci.children, nic)
	}
	port := strconv.FormatUint(uint64(l.Port), 10)
	if slices.ContainsFunc(nic.children, func(n *node) bool { return n.get("name") == l.RDMA && n.get("port") == port }) {
		return // the element exists: there are two macvlans on one NIC
	}
	n := &node{name: "net"}
	n.add("name", l.RDMA)
	if l.SpeedMbps != 0 {
		n.add("speed", strconv.FormatUint(uint64(l.SpeedMbps), 10))
	}
	n.add("port", port)
	n.add("guid", ncclGUID(l.SysImageGUID))
	if t.hasPeerMemory() {
		n.add("gdr", "1")
	}
	if l.Rail != nil {
		n.add("rail", strconv.Itoa(*l.Rail))
	}
	nic.children = append(nic.children, n)
}

// ncclGUID returns the GUID as NCCL writes it: libibverbs has the number in network byte order, and
// NCCL reads it in the byte order of the machine. If there is no GUID, ncclGUID returns "".
func ncclGUID(text string) string {
	var g ibaddr.GUID
	if g.UnmarshalText([]byte(text)) != nil || g == 0 {
		return ""
	}
	return fmt.Sprintf("%#x", bits.ReverseBytes64(uint64(g)))
}

// hasPeerMemory reports whether NICs can reach the memory of NVIDIA's GPUs by the module
// nvidia_peermem or one of its predecessors. It looks for the same files as NCCL
// (ncclIbGdrSupport).
func (t *topology) hasPeerMemory() bool {
	return slices.ContainsFunc([]string{
		"sys/kernel/mm/memory_peers/nv_mem/version", "sys/kernel/mm/memory_peers/nv_mem_nc/version", "sys/module/nvidia_peermem/version",
	}, func(file string) bool {
		_, err := os.Stat(filepath.Join(t.Root, file))
		return err == nil
	})
}

// sort sorts CPUs by their numbers and functions by their addresses.
func (n *node) sort() {
	slices.SortStableFunc(n.children, func(a, b *node) int {
		return cmp.Or(cmp.Compare(number(a.get("numaid")), number(b.get("numaid"))), cmp.Compare(a.get("busid"), b.get("busid")))
	})
	for _, c := range n.children {
		c.sort()
	}
}

// write writes the element in the form that NCCL itself dumps. NCCL's parser accepts no declaration
// and no tabs, and exactly one space between attributes.
func (n *node) write(b *bytes.Buffer, indent string) {
	b.WriteString(indent + "<" + n.name)
	for _, a := range n.attrs {
		b.WriteString(" " + a.key + `="`)
		_ = xml.EscapeText(b, []byte(a.value)) // a write to a buffer does not fail
		b.WriteString(`"`)
	}
	if len(n.children) == 0 {
		b.WriteString("/>\n")
		return
	}
	b.WriteString(">\n")
	for _, c := range n.children {
		c.write(b, indent+"  ")
	}
	b.WriteString(indent + "</" + n.name + ">\n")
}
