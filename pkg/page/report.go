package page

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/cell"
	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/pciname"
)

// These are the limits of the page. They are needed because the facts may come from a stranger.
const (
	maxColumns  = 128 // the maximum number of columns of the matrix
	maxHolders  = 4   // the maximum number of pods in a cell
	maxOnPage   = 100 // the maximum number of findings of a rule
	maxText     = 300 // the maximum length of a name, in characters
	maxInCell   = 100 // the maximum length of a finding in the matrix, in characters
	maxCounters = 3   // the maximum number of error counters in a cell
)

// signs has the sign for each status of the doctor's results.
var signs = map[rule.Status]sign{
	rule.Status(rule.Fail): {"bad", "✕", "fail"},
	rule.Status(rule.Warn): {"poor", "!", "warn"},
	rule.Unknown:           {"open", "?", "unknown"},
	rule.Skipped:           {"none", "–", "skipped"},
	rule.OK:                {"good", "✓", "ok"},
}

// report is the data for the template. All its texts are printable, and the template escapes them.
type report struct {
	Title   string
	Version string
	Status  sign // the worst status of all results
	Counts  []pageCount
	Rules   []pageRule // the rules with findings, the worst first
	Open    []pageRule // the rules that could not be checked
	Others  []pageRule // the rules without a finding
	Rails   []int      // the columns of the matrix; empty if the page is about one node
	Left    int        // the number of rails that are not in the matrix
	Nodes   []pageNode
	Picture template.HTML
}

type pageCount struct {
	sign
	N int
}

// pageRule is a rule with the results that have the same status.
type pageRule struct {
	sign
	rule.Result // the result of the first node
	Findings    []pageFinding
	More        int      // the number of findings that are left out
	Missing     []string // each with the name of its node
}

type pageFinding struct {
	doctor.Alike // has no nodes if the page is about one node
}

// pageNode is a node with its NICs.
type pageNode struct {
	Name    string
	Taken   string
	Version string
	Status  sign // the worst status of the node's rules and of the cluster's rules that found something about the node
	Counts  []pageCount
	Error   string // the reason why the node's NICs are not known
	NICs    []pageNIC
	Cells   []pageCell // the cells of the node's row in the matrix, one for each rail

	rails  []railFinding
	status rule.Status
}

// pageCell is a cell of the matrix: one rail of one node.
type pageCell struct {
	Class string // the class of the worst finding, empty if there is none
	Worst *railFinding
	More  int // the number of other findings
	NICs  []pageNIC
}

// railFinding is a finding about a rail of a node.
type railFinding struct {
	sign
	Evidence string

	status rule.Status
	rail   int
}

// pageNIC is a row of a node's table.
type pageNIC struct {
	sign    // the state of the NIC
	Rail    string
	Name    string
	PCI     string
	Model   string // for example "ConnectX-7"; the PCI IDs if the name is unknown
	Kind    string // "VF" or "SF", empty for a physical function
	RDMA    string
	Speed   string
	Near    string // the nearest GPU
	Errors  sign
	Holders []pageHolder
	More    int    // the number of holders that are left out
	Note    string // the reason why the NIC may not be lent

	rail *int
}

type pageHolder struct {
	Pod, Age string
	Gone     bool // true if the pod is gone but its attachment is not
}

// legible returns a text from the facts in a form that is safe for the page.
func legible(text string) string { return cell.Cut(cell.Printable(text), maxText) }

// Report returns the page about the nodes and the results of rules about them. picture comes from
// [Topology], or is nil. version is the version of the program that has checked the nodes.
func Report(nodes []*fact.Facts, results []rule.Result, picture []byte, version string) ([]byte, error) {
	return render(reportTemplate, newReport(nodes, results, picture, version))
}

func newReport(nodes []*fact.Facts, results []rule.Result, picture []byte, version string) *report {
	p := &report{
		Title: "Rails of " + fmt.Sprintf("%d nodes", len(nodes)), Version: version,
		Status: signs[rule.Worst(results)], Counts: countsOf(results),
		Picture: template.HTML(picture), //nolint:gosec // Topology escapes all names
	}
	byNode := map[string][]rule.Result{}
	for i := range results {
		if r := results[i]; r.Scope != rule.ClusterScope {
			byNode[r.Node] = append(byNode[r.Node], r)
		}
	}
	rails := map[int]bool{}
	for _, f := range nodes {
		n := nodeOnPage(f)
		ofNode := byNode[doctor.NewDocument(f, nil).Node]
		n.Counts = countsOf(ofNode)
		n.rails, n.status = findingsOnRails(f, ofNode, results), rule.Worst(append(ofNode, ofCluster(n.Name, results)...))
		n.Status = signs[n.status]
		for _, nic := range n.NICs {
			if nic.rail != nil {
				rails[*nic.rail] = true
			}
		}
		p.Nodes = append(p.Nodes, n)
	}
	switch len(nodes) {
	case 0:
	case 1:
		p.Title = "Rails of " + cmp.Or(p.Nodes[0].Name, "a node")
	default:
		slices.SortStableFunc(p.Nodes, worseFirst)
		p.matrix(slices.Sorted(maps.Keys(rails)))
	}
	for _, s := range rule.Statuses {
		p.add(s, results, len(nodes) > 1)
	}
	return p
}

func countsOf(results []rule.Result) (counts []pageCount) {
	n := doctor.NewDocument(&fact.Facts{}, results).Counts
	for _, s := range rule.Statuses {
		if n[s] > 0 {
			counts = append(counts, pageCount{signs[s], n[s]})
		}
	}
	return counts
}

// add adds the rules that have the status. If several is true, findings name their node.
func (p *report) add(status rule.Status, results []rule.Result, several bool) {
	var rules []pageRule
	for _, group := range doctor.ByRule(results, status) {
		rule := pageRule{sign: signs[status], Result: *group[0]}
		for _, r := range group {
			node := ""
			if several {
				node = r.Node
			}
			for _, m := range r.Missing {
				if node != "" {
					m = node + ": " + m
				}
				if len(rule.Missing) < maxOnPage {
					rule.Missing = append(rule.Missing, m)
				}
			}
		}
		for _, f := range doctor.GroupFindings(group) {
			if len(rule.Findings) == maxOnPage {
				rule.More++
				continue
			}
			if !several {
				f.Nodes = nil
			}
			rule.Findings = append(rule.Findings, pageFinding{f})
		}
		rules = append(rules, rule)
	}
	switch status {
	case rule.Status(rule.Fail), rule.Status(rule.Warn):
		p.Rules = append(p.Rules, rules...)
	case rule.Unknown:
		p.Open = append(p.Open, rules...)
	default:
		p.Others = append(p.Others, rules...)
	}
}

// matrix fills the cells of all nodes for these rails.
func (p *report) matrix(rails []int) {
	p.Left = max(0, len(rails)-maxColumns)
	p.Rails = rails[:len(rails)-p.Left]
	column := map[int]int{}
	for i, rail := range p.Rails {
		column[rail] = i
	}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		n.Cells = make([]pageCell, len(p.Rails))
		for _, nic := range n.NICs {
			if nic.rail == nil {
				continue
			}
			if k, ok := column[*nic.rail]; ok {
				n.Cells[k].NICs = append(n.Cells[k].NICs, nic)
			}
		}
		for _, f := range n.rails { // the worst finding first
			k, ok := column[f.rail]
			if !ok {
				continue
			}
			if c := &n.Cells[k]; c.Worst != nil {
				c.More++
			} else {
				c.Class, c.Worst = f.Class, &f
			}
		}
	}
}

// ofCluster returns the results of rules for clusters that found something about the node.
func ofCluster(node string, results []rule.Result) (found []rule.Result) {
	for i := range results {
		r := &results[i]
		if r.Scope == rule.ClusterScope && slices.ContainsFunc(r.Findings, func(f rule.Finding) bool { return f.Object == "node "+node }) {
			found = append(found, *r)
		}
	}
	return found
}

// findingsOnRails returns the findings about rails of a node, the worst first. These are the
// findings in the node's own results about a NIC with a rail, and the findings in all results that
// name the node and a rail.
func findingsOnRails(node *fact.Facts, results, all []rule.Result) (found []railFinding) {
	add := func(r *rule.Result, f *rule.Finding, rail int) {
		mark := signs[r.Status]
		mark.Text = r.ID
		found = append(found, railFinding{mark, cell.Cut(legible(f.Evidence), maxInCell), r.Status, rail})
	}
	for i := range results {
		for k := range results[i].Findings {
			f := &results[i].Findings[k]
			if f.Rail != nil {
				add(&results[i], f, *f.Rail)
			}
			if node.NICs == nil {
				continue
			}
			for m := range node.NICs.List.Value {
				if n := &node.NICs.List.Value[m]; f.Rail == nil && n.Rail != nil && f.About(n.Object()) {
					add(&results[i], f, *n.Rail)
				}
			}
		}
	}
	name := doctor.NewDocument(node, nil).Node
	for _, r := range ofCluster(name, all) {
		for k := range r.Findings {
			if f := &r.Findings[k]; f.Rail != nil && f.Object == "node "+name {
				add(&r, f, *f.Rail)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b railFinding) int { return cmp.Compare(badness(a.status), badness(b.status)) })
	return found
}

// badness returns the position of a status in the list of all statuses, which begins with the
// worst.
func badness(s rule.Status) int { return slices.Index(rule.Statuses, s) }

// worseFirst compares two nodes for sorting. A node with a worse status comes first, and then a
// node with more findings about rails. A node whose NICs are not known does not count as healthy.
func worseFirst(a, b pageNode) int {
	rank := func(n *pageNode) int {
		if n.Error != "" {
			return min(badness(n.status), badness(rule.Unknown))
		}
		return badness(n.status)
	}
	return cmp.Or(cmp.Compare(rank(&a), rank(&b)), cmp.Compare(len(b.rails), len(a.rails)))
}

func nodeOnPage(f *fact.Facts) pageNode {
	n := pageNode{Name: legible(f.Node), Version: legible(f.Version)}
	if !f.Taken.IsZero() {
		n.Taken = f.Taken.UTC().Format("2006-01-02 15:04:05 UTC")
	}
	if f.NICs == nil || !f.NICs.List.OK() {
		n.Error = "the NICs are not known"
		if f.NICs != nil && f.NICs.List.Error != "" {
			n.Error += ": " + legible(f.NICs.List.Error)
		}
		return n
	}
	for i := range f.NICs.List.Value {
		n.NICs = append(n.NICs, nicOnPage(f, &f.NICs.List.Value[i]))
	}
	slices.SortStableFunc(n.NICs, func(a, b pageNIC) int {
		switch {
		case a.rail == nil && b.rail == nil:
			return 0
		case a.rail == nil:
			return 1
		case b.rail == nil:
			return -1
		}
		return cmp.Compare(*a.rail, *b.rail)
	})
	return n
}

func nicOnPage(f *fact.Facts, n *fact.NIC) pageNIC {
	row := pageNIC{
		sign: stateOnPage(n), Rail: cell.Number(n.Rail), Name: legible(n.Name), PCI: legible(n.PCI),
		Errors: errorsOnPage(n), Note: legible(n.Protected), rail: n.Rail,
	}
	if n.Vendor != "" {
		row.Model = legible(cmp.Or(pciname.Of(n.Vendor, n.Device), n.Vendor+":"+n.Device))
	}
	if n.Kind == "vf" || n.Kind == "sf" {
		row.Kind = strings.ToUpper(n.Kind)
	}
	var ports []string
	for _, port := range n.Ports.Value {
		ports = append(ports, fmt.Sprintf("%s/%d %s", port.Device, port.Port, port.State))
	}
	row.RDMA = legible(strings.Join(ports, ", "))
	if !n.Ports.OK() {
		row.RDMA = "?"
	}
	row.Speed = cell.Speed(n.Mbps.Value)
	if !n.Mbps.OK() {
		row.Speed = "?"
	}
	row.Near = nearestOnPage(f.NICs.GPUs.Value, n.Distances)
	holders := holdersOnPage(f, n)
	row.More = max(0, len(holders)-maxHolders)
	row.Holders = holders[:len(holders)-row.More]
	return row
}

// stateOnPage returns the sign that shows whether the NIC can carry traffic. If it cannot, the sign
// has the reason.
func stateOnPage(n *fact.NIC) sign {
	switch {
	case n.Name == "" && n.Driver != "":
		return sign{"none", "–", legible(n.Driver)} // a userspace driver has the NIC
	case !n.AdminUp.OK() || !n.Carrier.OK():
		return sign{"open", "?", "not known"}
	case !n.AdminUp.Value:
		return sign{"none", "–", "set down"}
	case !n.Carrier.Value:
		return sign{"bad", "✕", "no carrier"}
	}
	for _, port := range n.Ports.Value {
		if port.State != "ACTIVE" {
			return sign{"bad", "✕", "port " + legible(port.State)}
		}
	}
	return sign{"good", "✓", "up"}
}

// errorsOnPage returns a sign with the error counters that grew while the facts were read, and with
// the losses of the carrier.
func errorsOnPage(n *fact.NIC) sign {
	var found []string
	counters := n.Rising.Value.Counters
	for _, name := range slices.Sorted(maps.Keys(counters)) {
		if counters[name] > 0 {
			found = append(found, fmt.Sprintf("%s +%d", legible(name), counters[name]))
		}
	}
	if more := len(found) - maxCounters; more > 0 {
		found = append(found[:maxCounters], fmt.Sprintf("and %d more", more))
	}
	if flaps := n.Flaps.Value; n.Flaps.OK() && flaps.Count > 0 {
		found = append(found, fmt.Sprintf("carrier lost %d times in %s", flaps.Count, cell.Age(time.Duration(flaps.Seconds*float64(time.Second)))))
	}
	switch {
	case len(found) > 0:
		return sign{"poor", "!", strings.Join(found, ", ")}
	case !n.Rising.OK():
		return sign{"open", "?", "not known"}
	}
	return sign{"good", "✓", "none"}
}

// nearestOnPage returns a text with the distance of the nearest GPUs and the numbers of these GPUs.
func nearestOnPage(gpus []fact.GPU, distances map[string]string) string {
	order := []string{"PIX", "PXB", "PHB", "NODE", "SYS"}
	best := len(order)
	var names []string
	for i, g := range gpus {
		d := slices.Index(order, distances[g.PCI])
		switch {
		case d < 0 || d > best:
			continue
		case d < best:
			best, names = d, nil
		}
		names = append(names, fmt.Sprintf("GPU%d", i))
	}
	if names == nil {
		return ""
	}
	return order[best] + " " + legible(strings.Join(names, ", "))
}

// holdersOnPage returns the pods that have the NIC or a macvlan on the NIC, according to the
// ledger. If the ledger has none, it returns the holder that the list of NICs names.
func holdersOnPage(f *fact.Facts, n *fact.NIC) (holders []pageHolder) {
	if f.Ledger != nil {
		for _, a := range f.Ledger.Attachments.Value {
			if byPCI := n.PCI != "" && a.PCI == n.PCI; !byPCI && (a.PCI != "" && n.PCI != "" || n.Name == "" || a.NIC != n.Name) {
				continue
			}
			h := pageHolder{Pod: legible(cmp.Or(a.Pod, a.ContainerID)), Gone: !a.Alive}
			if !a.Created.IsZero() && !f.Taken.IsZero() {
				h.Age = cell.Age(max(0, f.Taken.Sub(a.Created)))
			}
			holders = append(holders, h)
		}
	}
	switch {
	case len(holders) > 0:
	case n.Holder != "":
		holders = []pageHolder{{Pod: legible(n.Holder)}}
	case f.Ledger == nil || !f.Ledger.Attachments.OK():
		holders = []pageHolder{{Pod: "? not known"}}
	}
	return holders
}

//go:embed report.html
var reportHTML string

var reportTemplate = newTemplate(reportHTML)
