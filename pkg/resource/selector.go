package resource

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Select selects NICs. For each list that has values, a NIC must match one of the values. The case
// of hexadecimal digits does not matter.
type Select struct {
	Rails   RailList `yaml:"rails,omitempty"`
	Vendors []string `yaml:"vendors,omitempty"` // "15b3"
	Devices []string `yaml:"devices,omitempty"`
	Drivers []string `yaml:"drivers,omitempty"`
	// IfNames has names and altnames of netdevs.
	IfNames      []string `yaml:"ifNames,omitempty"`
	LinkTypes    []string `yaml:"linkTypes,omitempty"` // "ether" or "infiniband"
	PKeys        []string `yaml:"pKeys,omitempty"`     // partition keys of InfiniBand netdevs, "0x8001"
	PCIAddresses []string `yaml:"pciAddresses,omitempty"`
	ACPIIndexes  []string `yaml:"acpiIndexes,omitempty"`
	// PFNames has names of physical functions, and RootDevices has their PCI addresses. A value
	// selects the physical function and its virtual functions. With "#0-3,6" at its end, a value
	// selects only the virtual functions with these numbers.
	PFNames     []string `yaml:"pfNames,omitempty"`
	RootDevices []string `yaml:"rootDevices,omitempty"`
	// RDMA selects either the NICs that have RDMA char devices (true), or the NICs that have none
	// (false).
	RDMA *bool `yaml:"rdma,omitempty"`
}

var selectKeys = []string{
	"rails", "vendors", "devices", "drivers", "ifNames", "linkTypes", "pKeys", "pciAddresses", "acpiIndexes", "pfNames", "rootDevices", "rdma",
}

// RailList has either numbers of rails, or only the value allRails.
type RailList []string

// allRails selects all NICs that have a rail.
const allRails = "all"

// UnmarshalYAML implements [yaml.Unmarshaler].
func (l *RailList) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode && node.Value == allRails {
		*l = RailList{allRails}
		return nil
	}
	var numbers []int
	if err := node.Decode(&numbers); err != nil {
		return fmt.Errorf("line %d: select.rails must be a list of rails, or %s", node.Line, allRails)
	}
	*l = RailList{}
	for _, number := range numbers {
		if number < 0 || number > MaxRail {
			return fmt.Errorf("line %d: select.rails: %d is not from 0 to %d", node.Line, number, MaxRail)
		}
		*l = append(*l, strconv.Itoa(number))
	}
	return nil
}

// MarshalYAML implements [yaml.Marshaler].
func (l RailList) MarshalYAML() (any, error) {
	if slices.Equal(l, RailList{allRails}) {
		return allRails, nil
	}
	numbers := make([]int, len(l))
	for i := range l {
		var err error
		if numbers[i], err = strconv.Atoi(l[i]); err != nil {
			return nil, err
		}
	}
	return numbers, nil
}

// UnmarshalYAML implements [yaml.Unmarshaler].
func (s *Select) UnmarshalYAML(node *yaml.Node) error {
	if err := CheckKeys(node, selectKeys...); err != nil {
		return err
	}
	type plain Select
	return node.Decode((*plain)(s))
}

// list is one of the lists of a selector.
type list struct {
	key    string
	values []string
	has    func(n *NIC, value string, rails map[string]int) bool
	check  func(value string) error
}

func (s *Select) lists() []list {
	return []list{
		{"rails", s.Rails, hasRail, checkText},
		{"vendors", s.Vendors, func(n *NIC, v string, _ map[string]int) bool { return strings.EqualFold(n.Vendor, v) }, checkHex},
		{"devices", s.Devices, func(n *NIC, v string, _ map[string]int) bool { return strings.EqualFold(n.Device, v) }, checkHex},
		{"drivers", s.Drivers, func(n *NIC, v string, _ map[string]int) bool { return n.Driver == v }, checkText},
		{"ifNames", s.IfNames, func(n *NIC, v string, _ map[string]int) bool { return slices.Contains(n.Names, v) }, checkText},
		{"linkTypes", s.LinkTypes, func(n *NIC, v string, _ map[string]int) bool { return n.LinkType == v }, checkLinkType},
		{"pKeys", s.PKeys, func(n *NIC, v string, _ map[string]int) bool {
			key, err := strconv.ParseUint(v, 0, 16)
			return err == nil && key != 0 && uint16(key) == n.PKey
		}, checkPKey},
		{"pciAddresses", s.PCIAddresses, func(n *NIC, v string, _ map[string]int) bool { return strings.EqualFold(n.PCI, v) }, checkPCI},
		{"acpiIndexes", s.ACPIIndexes, func(n *NIC, v string, _ map[string]int) bool {
			return n.ACPIIndex != 0 && strconv.Itoa(n.ACPIIndex) == v
		}, checkNumber},
		{"pfNames", s.PFNames, func(n *NIC, v string, _ map[string]int) bool { return n.hasFunction(v, n.PF, n.Names...) }, checkFunctions},
		{"rootDevices", s.RootDevices, func(n *NIC, v string, _ map[string]int) bool { return n.hasFunction(v, n.Parent, n.PCI) }, checkRootDevice},
	}
}

func hasRail(n *NIC, value string, rails map[string]int) bool {
	rail, ok := rails[n.PCI]
	return ok && n.PCI != "" && (value == allRails || strconv.Itoa(rail) == value)
}

// matches reports whether the NIC matches everything in the selector.
func (s *Select) matches(n *NIC, rails map[string]int) bool {
	if s.RDMA != nil && *s.RDMA != n.usesRDMA() {
		return false
	}
	return !slices.ContainsFunc(s.lists(), func(l list) bool {
		return len(l.values) > 0 && !slices.ContainsFunc(l.values, func(v string) bool { return v != "" && l.has(n, v, rails) })
	})
}

// named returns the lists that name single NICs. The author of such a list expects that every value
// matches a NIC.
func (s *Select) named() []list {
	return slices.DeleteFunc(s.lists(), func(l list) bool {
		return len(l.values) == 0 || l.key != "rails" && l.key != "ifNames" && l.key != "pciAddresses"
	})
}

// String returns the selector for messages.
func (s *Select) String() string {
	var parts []string
	for _, l := range s.lists() {
		if len(l.values) > 0 {
			parts = append(parts, l.key+" "+strings.Join(l.values, ","))
		}
	}
	if s.RDMA != nil {
		parts = append(parts, fmt.Sprintf("rdma %v", *s.RDMA))
	}
	if len(parts) == 0 {
		return "all NICs"
	}
	return strings.Join(parts, "; ")
}

// check returns an error if a selector of the node file is empty, or has a value that no NIC can
// match.
func (s *Select) check() error {
	given := s.RDMA != nil
	for _, l := range s.lists() {
		if l.values != nil && len(l.values) == 0 {
			return fmt.Errorf("%s is empty: remove the key, or add a value", l.key)
		}
		for _, v := range l.values {
			if err := l.check(v); err != nil {
				return fmt.Errorf("%s: %w", l.key, err)
			}
			given = true
		}
	}
	if !given {
		return errors.New("it is empty; for all NICs with RDMA devices write {rdma: true}")
	}
	return nil
}

func checkText(v string) error {
	if strings.TrimSpace(v) == "" {
		return errors.New("a value is empty")
	}
	return nil
}

func checkHex(v string) error {
	if _, err := strconv.ParseUint(v, 16, 16); err != nil || len(v) != 4 {
		return fmt.Errorf(`%q is not four hexadecimal digits, such as "15b3"`, v)
	}
	return nil
}

func checkLinkType(v string) error {
	if v != Ethernet && v != InfiniBand {
		return fmt.Errorf(`%q is neither "ether" nor "infiniband"`, v)
	}
	return nil
}

func checkPKey(v string) error {
	digits := strings.TrimPrefix(strings.ToLower(v), "0x")
	if key, err := strconv.ParseUint(digits, 16, 16); err != nil || digits == v || key&0x7fff == 0 {
		return fmt.Errorf(`%q is not a partition key, such as "0x8001"`, v)
	}
	return nil
}

func checkNumber(v string) error {
	if n, err := strconv.Atoi(v); err != nil || n <= 0 {
		return fmt.Errorf("%q is not a positive number", v)
	}
	return nil
}

// checkPCI returns an error if v is not the address of a PCI function in the form that the kernel
// uses, "0000:3b:00.0". The case of the digits does not matter.
func checkPCI(v string) error {
	wrong := fmt.Errorf(`%q is not a PCI address with its domain, such as "0000:3b:00.0"`, v)
	parts := strings.Split(v, ":")
	if len(parts) != 3 {
		return wrong
	}
	device, function, _ := strings.Cut(parts[2], ".")
	for _, field := range []struct {
		text     string
		min, max int // number of digits
		limit    uint64
	}{{parts[0], 4, 8, 1<<32 - 1}, {parts[1], 2, 2, 255}, {device, 2, 2, 31}, {function, 1, 1, 7}} {
		n, err := strconv.ParseUint(field.text, 16, 32)
		if err != nil || n > field.limit || len(field.text) < field.min || len(field.text) > field.max {
			return wrong
		}
	}
	return nil
}

func checkRootDevice(v string) error {
	address, _, _ := strings.Cut(v, "#")
	if err := checkPCI(address); err != nil {
		return err
	}
	return checkFunctions(v)
}

func checkFunctions(v string) error {
	name, ranges, numbered := strings.Cut(v, "#")
	if name == "" {
		return fmt.Errorf("%q does not name a physical function", v)
	}
	if !numbered {
		return nil
	}
	for r := range strings.SplitSeq(ranges, ",") {
		if _, _, err := parseRange(r); err != nil {
			return fmt.Errorf(`%q: %w; write the virtual functions as "#0-3,6"`, v, err)
		}
	}
	return nil
}

// parseRange returns the bounds of a range such as "3-5", or of a single number such as "3".
func parseRange(text string) (first, last int, err error) {
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	f, err := strconv.ParseUint(from, 10, 16)
	if err != nil {
		return 0, 0, fmt.Errorf("%q is not a number", from)
	}
	l, err := strconv.ParseUint(to, 10, 16)
	if err != nil {
		return 0, 0, fmt.Errorf("%q is not a number", to)
	}
	if l < f {
		return 0, 0, fmt.Errorf("the range %q is empty", text)
	}
	return int(f), int(l), nil
}

// hasFunction reports whether sriov-network-device-plugin would select the NIC with this value of
// pfNames or rootDevices. It selects the virtual functions of the physical function whose name or
// address is parent. It also selects a NIC that is not a virtual function, if names, the NIC's own
// names or address, have the value.
func (n *NIC) hasFunction(value, parent string, names ...string) bool {
	name, ranges, numbered := strings.Cut(value, "#")
	if name == "" {
		return false
	}
	if !n.virtual() {
		return !numbered && slices.ContainsFunc(names, func(o string) bool { return strings.EqualFold(o, name) })
	}
	if !strings.EqualFold(parent, name) {
		return false
	}
	if !numbered {
		return true
	}
	for r := range strings.SplitSeq(ranges, ",") {
		if first, last, err := parseRange(r); err == nil && first <= n.VF && n.VF <= last {
			return true
		}
	}
	return false
}

// virtual reports whether the NIC is a virtual function. A virtual machine cannot know that about
// its own NICs.
func (n *NIC) virtual() bool { return n.PF != "" || n.Parent != "" }

// usesRDMA reports whether the NIC has RDMA char devices. They stay in sysfs while the NIC's RDMA
// device is in a pod. While the device moves, they are not in sysfs, but the ledger has them.
func (n *NIC) usesRDMA() bool { return len(n.CharDevices) > 0 }

// label returns the name of the NIC for messages.
func (n *NIC) label() string {
	name := ""
	switch {
	case len(n.Names) > 0:
		name = n.Names[0]
	case len(n.RDMA) > 0:
		name = n.RDMA[0]
	}
	switch {
	case n.PCI == "":
		return name
	case name == "":
		return n.PCI
	}
	return name + " (" + n.PCI + ")"
}

// comparePCI compares PCI addresses. Domains above ffff have more digits.
func comparePCI(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}
