package resource

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MaxRail is the highest number that a rail may have.
const MaxRail = 255

// Rails is the key "rails" of the node file, which defines which rail each NIC is. A nil *Rails
// means that no NIC has a rail.
type Rails struct {
	// List names the NIC of each rail. It is empty if Auto is true.
	List []Rail
	// Auto numbers the NICs from 0 in the order of their PCI addresses. Virtual functions
	// do not count.
	Auto bool
	// Select selects the NICs that Auto numbers. It may have only vendors, devices, drivers and
	// rdma. These are facts that sysfs also has about a lent NIC, so no number changes when a NIC
	// is lent. If Select is nil, the NICs with RDMA char devices are selected.
	Select *Select
}

// Rail names the NIC of one rail. Exactly one field is set in addition to ID and Note.
type Rail struct {
	ID        int
	PCI       string // in lower case, with the domain
	Name      string // name or altname of the netdev
	MAC       string // in lower case
	ACPIIndex int
	RDMA      string // name of the RDMA device

	Note string // a comment for [Rails.YAML]; it is never read from a file
}

var (
	railKeys = []string{"id", "pci", "name", "mac", "acpiIndex", "rdma"}
	autoKeys = []string{"auto", "select"}
)

// pciOrder is the only value of the key "auto".
const pciOrder = "pciOrder"

// UnmarshalYAML implements [yaml.Unmarshaler].
func (r *Rails) UnmarshalYAML(node *yaml.Node) error {
	switch node.Kind {
	case yaml.SequenceNode:
		var err error
		if r.List, err = decodeList[Rail](node); err != nil {
			return fmt.Errorf("rails: %w", err)
		}
		return r.check()
	case yaml.MappingNode:
		return r.decodeAuto(node)
	}
	return fmt.Errorf("line %d: \"rails\" must be a list of {id, pci}, or {auto: %s}", node.Line, pciOrder)
}

func (r *Rails) decodeAuto(node *yaml.Node) error {
	if err := CheckKeys(node, autoKeys...); err != nil {
		return err
	}
	var raw struct {
		Auto   string    `yaml:"auto"`
		Select yaml.Node `yaml:"select"`
	}
	if err := node.Decode(&raw); err != nil {
		return err
	}
	if raw.Auto != pciOrder {
		return fmt.Errorf("line %d: rails.auto is %q, not %q", node.Line, raw.Auto, pciOrder)
	}
	r.Auto = true
	if raw.Select.IsZero() {
		return nil
	}
	if err := CheckKeys(&raw.Select, "vendors", "devices", "drivers", "rdma"); err != nil {
		return fmt.Errorf("rails.select: %w", err)
	}
	if err := raw.Select.Decode(&r.Select); err != nil {
		return err
	}
	if err := r.Select.check(); err != nil {
		return fmt.Errorf("rails.select: %w", err)
	}
	return nil
}

// UnmarshalYAML implements [yaml.Unmarshaler].
func (r *Rail) UnmarshalYAML(node *yaml.Node) error {
	if err := CheckKeys(node, railKeys...); err != nil {
		return err
	}
	var raw struct {
		ID        *int    `yaml:"id"`
		PCI       *string `yaml:"pci"`
		Name      *string `yaml:"name"`
		MAC       *string `yaml:"mac"`
		ACPIIndex *int    `yaml:"acpiIndex"`
		RDMA      *string `yaml:"rdma"`
	}
	if err := node.Decode(&raw); err != nil {
		return err
	}
	if raw.ID == nil || *raw.ID < 0 || *raw.ID > MaxRail {
		return fmt.Errorf("line %d: a rail needs an id from 0 to %d", node.Line, MaxRail)
	}
	given := 0
	for _, key := range []bool{raw.PCI != nil, raw.Name != nil, raw.MAC != nil, raw.ACPIIndex != nil, raw.RDMA != nil} {
		if key {
			given++
		}
	}
	if given != 1 {
		return fmt.Errorf("line %d: rail %d needs one of pci, name, mac, acpiIndex and rdma, but has %d of them", node.Line, *raw.ID, given)
	}
	*r = Rail{ID: *raw.ID, PCI: text(raw.PCI), Name: text(raw.Name), MAC: text(raw.MAC), RDMA: text(raw.RDMA)}
	if raw.ACPIIndex != nil {
		r.ACPIIndex = *raw.ACPIIndex
	}
	if err := r.normalize(); err != nil {
		return fmt.Errorf("line %d: rail %d: %w", node.Line, r.ID, err)
	}
	return nil
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// normalize checks the value that selects the NIC, and changes it to the form that the kernel uses.
func (r *Rail) normalize() error {
	switch {
	case r.PCI != "":
		r.PCI = strings.ToLower(r.PCI)
		return checkPCI(r.PCI)
	case r.MAC != "":
		mac, err := net.ParseMAC(r.MAC)
		if err != nil {
			return fmt.Errorf("%q is not a MAC address", r.MAC)
		}
		r.MAC = mac.String()
	case r.Name == "" && r.RDMA == "" && r.ACPIIndex <= 0:
		return errors.New("its selector is empty")
	}
	return nil
}

// check returns an error if two rails have the same number or the same selector.
func (r *Rails) check() error {
	ids, selectors := map[int]bool{}, map[string]int{}
	for _, rail := range r.List {
		if ids[rail.ID] {
			return fmt.Errorf("two entries of rails have the id %d", rail.ID)
		}
		if other, taken := selectors[rail.selector()]; taken {
			return fmt.Errorf("rails %d and %d are the same NIC, %s", other, rail.ID, rail.selector())
		}
		ids[rail.ID], selectors[rail.selector()] = true, rail.ID
	}
	return nil
}

// selector returns the entry's selector in YAML, or "" if the entry has no selector.
func (r *Rail) selector() string {
	quoted := strconv.QuoteToASCII // YAML knows all of Go's escapes
	switch {
	case r.PCI != "":
		return "pci: " + quoted(r.PCI)
	case r.Name != "":
		return "name: " + quoted(r.Name)
	case r.MAC != "":
		return "mac: " + quoted(r.MAC)
	case r.RDMA != "":
		return "rdma: " + quoted(r.RDMA)
	case r.ACPIIndex != 0:
		return "acpiIndex: " + strconv.Itoa(r.ACPIIndex)
	}
	return ""
}

func (r *Rail) matches(n *NIC) bool {
	switch {
	case r.PCI != "":
		return r.PCI == n.PCI
	case r.Name != "":
		return slices.Contains(n.Names, r.Name)
	case r.MAC != "":
		return strings.EqualFold(r.MAC, n.MAC)
	case r.RDMA != "":
		return slices.Contains(n.RDMA, r.RDMA)
	}
	return r.ACPIIndex != 0 && r.ACPIIndex == n.ACPIIndex
}

// Assign returns the rail of each NIC that has a rail, by PCI address. A NIC that the entries do
// not name clearly has no rail. problems has a problem for each such case.
func (r *Rails) Assign(nics []NIC) (byPCI map[string]int, problems []Problem) {
	byPCI = map[string]int{}
	switch {
	case r == nil:
		return byPCI, nil
	case r.Auto:
		return r.assignInOrder(nics)
	}
	taken := map[string]int{} // the rail of each NIC, including NICs that two entries name
	for i := range r.List {
		rail := &r.List[i]
		what := fmt.Sprintf("rails: rail %d ({%s})", rail.ID, rail.selector())
		addresses := map[string]bool{}
		for j := range nics {
			if rail.matches(&nics[j]) {
				addresses[nics[j].PCI] = true
			}
		}
		found := slices.SortedFunc(maps.Keys(addresses), comparePCI)
		switch {
		case len(found) == 0:
			problems = append(problems, Problem{"", NothingSelected, what + ` is not a NIC of this node; correct the entry: "railctl rails discover" proposes all rails`})
			continue
		case len(found) > 1:
			problems = append(problems, Problem{"", Ambiguous, fmt.Sprintf("%s matches several NICs, %s: none of them gets the rail; name one NIC by its PCI address", what, strings.Join(found, " "))})
			continue
		case found[0] == "":
			problems = append(problems, Problem{"", NoPCI, what + " is a NIC without a PCI function, which cannot be in a pool; name another NIC"})
			continue
		}
		pci := found[0]
		if other, twice := taken[pci]; twice {
			problems = append(problems, Problem{"", Overlap, fmt.Sprintf("rails: rails %d and %d are the same NIC, %s: it gets neither rail; remove one of the entries", other, rail.ID, pci)})
			delete(byPCI, pci)
			continue
		}
		taken[pci], byPCI[pci] = rail.ID, rail.ID
	}
	return byPCI, problems
}

// assignInOrder numbers the NICs in the order of their PCI addresses.
func (r *Rails) assignInOrder(nics []NIC) (byPCI map[string]int, problems []Problem) {
	sel := r.Select
	if sel == nil {
		yes := true
		sel = &Select{RDMA: &yes}
	}
	addresses := map[string]bool{}
	for i := range nics {
		if n := &nics[i]; n.PCI != "" && !n.virtual() && sel.matches(n, nil) {
			addresses[n.PCI] = true
		}
	}
	byPCI = map[string]int{}
	for i, pci := range slices.SortedFunc(maps.Keys(addresses), comparePCI) {
		if i > MaxRail {
			return byPCI, []Problem{{"", Ambiguous, fmt.Sprintf("rails: %d NICs are selected, but there are at most %d rails: %s and the NICs after it have no rail; narrow rails.select", len(addresses), MaxRail+1, pci)}}
		}
		byPCI[pci] = i
	}
	if len(byPCI) == 0 {
		problems = append(problems, Problem{"", NothingSelected, `rails: no NIC of this node is selected (` + sel.String() + `); correct rails.select`})
	}
	return byPCI, problems
}

// YAML returns the key "rails" for a node file, with its value. The note of each entry becomes a
// comment.
func (r *Rails) YAML() string {
	if r == nil {
		return ""
	}
	if r.Auto {
		out := "rails:\n  auto: " + pciOrder + "\n"
		if r.Select != nil {
			text, _ := yaml.Marshal(r.Select) // strings and a bool
			out += "  select:\n    " + strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", "\n    ") + "\n"
		}
		return out
	}
	if len(r.List) == 0 {
		return "rails: []\n"
	}
	var out strings.Builder
	out.WriteString("rails:\n")
	for i := range r.List {
		rail := &r.List[i]
		fmt.Fprintf(&out, "- {id: %d, %s}", rail.ID, rail.selector())
		if note := strings.Join(strings.Fields(rail.Note), " "); note != "" {
			out.WriteString("  # " + note)
		}
		out.WriteString("\n")
	}
	return out.String()
}
