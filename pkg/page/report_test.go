package page

import (
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

var update = flag.Bool("update", false, "write the expected pages in testdata")

// factsOfTraining returns facts of a node with eight rails. Two pods hold five of the rails, and
// one of the pods is gone. Rail 3 has no carrier, rail 5 is set down, rail 6 has macvlans and
// errors, and nothing is known about rail 7.
func factsOfTraining(name string) *fact.Facts {
	const source = "test"
	taken := time.Date(2026, 11, 26, 9, 0, 0, 0, time.UTC)
	f := &fact.Facts{Schema: fact.Schema, Node: name, Version: "v1", Taken: taken, NICs: &fact.NICs{}, Ledger: &fact.Ledger{}}
	var nics []fact.NIC
	var gpus []fact.GPU
	var attachments []fact.Attachment
	for rail := range 8 {
		gpu, pci := fmt.Sprintf("0000:%02x:00.0", 0x13+rail), fmt.Sprintf("0000:%02x:00.0", 0x40+rail)
		gpus = append(gpus, fact.GPU{PCI: gpu, Vendor: "10de"})
		n := fact.NIC{
			Name: fmt.Sprintf("ens%dnp0", 12+rail), PCI: pci, Kind: "pf", Driver: "mlx5_core", Rail: &rail, Distances: map[string]string{},
			AdminUp: fact.Known(true, source), Carrier: fact.Known(true, source), Mbps: fact.Known(int64(400000), source),
			Rising: fact.Known(fact.Rising{Seconds: 1}, source), Flaps: fact.Known(fact.Flaps{Seconds: 86400}, source),
			Ports: fact.Known([]fact.Port{{Device: fmt.Sprintf("mlx5_%d", rail), Port: 1, State: "ACTIVE"}}, source),
		}
		for i := range 8 {
			n.Distances[fmt.Sprintf("0000:%02x:00.0", 0x13+i)] = map[bool]string{true: "PXB", false: "SYS"}[i/2 == rail/2]
		}
		if rail < 5 {
			n.Holder = fmt.Sprintf("training/llama-worker-%d", rail/4)
			attachments = append(attachments, fact.Attachment{Pod: n.Holder, NIC: n.Name, PCI: pci, Alive: rail < 4, Created: taken.Add(-50 * time.Hour)})
		}
		nics = append(nics, n)
	}
	nics[3].Carrier.Value, nics[3].Mbps.Value, nics[3].Ports.Value[0].State = false, 0, "DOWN"
	nics[5].AdminUp.Value, nics[5].Mbps.Value = false, 0
	nics[6].Rising.Value.Counters = map[string]uint64{"out_of_sequence": 7, "packet_seq_err": 2, "rx_discards": 0}
	nics[6].Flaps.Value.Count = 4
	for i := range 6 {
		attachments = append(attachments, fact.Attachment{Pod: fmt.Sprintf("web/front-%d", i), NIC: nics[6].Name, Alive: true, Created: taken.Add(-time.Duration(i) * time.Minute)})
	}
	away := errors.New("permission denied")
	nics[7].AdminUp, nics[7].Mbps, nics[7].Rising = fact.Failed[bool](source, away), fact.Failed[int64](source, away), fact.Failed[fact.Rising](source, away)
	nics[7].Ports = fact.Failed[[]fact.Port](source, away)
	numa := 0
	nics = append(nics, fact.NIC{
		Name: "eno1", PCI: "0000:02:00.0", NUMA: &numa, Driver: "ice", Protected: "a default route of the host leaves by it",
		AdminUp: fact.Known(true, source), Carrier: fact.Known(true, source), Mbps: fact.Known(int64(2500), source), Rising: fact.Known(fact.Rising{}, source), Ports: fact.Known([]fact.Port(nil), source),
	}, fact.NIC{PCI: "0000:03:00.0", Kind: "vf", Driver: "vfio-pci"})
	f.NICs.List, f.NICs.GPUs = fact.Known(nics, source), fact.Known(gpus, source)
	f.Ledger.Attachments = fact.Known(attachments, source)
	return f
}

// resultsOf returns results of each status.
func resultsOf(node string) []rule.Result {
	return []rule.Result{
		{ID: "NIC-CARRIER", Scope: rule.NodeScope, Node: node, Status: rule.Status(rule.Fail), Expects: "Each NIC with a rail has a carrier.", Consequence: "The rail does not work.", Cure: "Check the cable.", Findings: []rule.Finding{{Object: "NIC ens15np0", Evidence: "it is up and has no carrier"}}},
		{ID: "HOST-PEERMEM", Scope: rule.NodeScope, Node: node, Status: rule.Status(rule.Warn), Expects: "The node has a path for GPUDirect.", Consequence: "It is slow.", Cure: "Load the module.", Findings: []rule.Finding{{Evidence: "nvidia_peermem is not loaded", Fix: "modprobe nvidia-peermem"}}},
		{ID: "NIC-FLAP", Scope: rule.NodeScope, Node: node, Status: rule.Unknown, Expects: "No flaps.", Missing: []string{"ens19np0 adminUp (test: permission denied)", "ens19np0 mbps (test: permission denied)"}},
		{ID: "DP-DUP", Scope: rule.NodeScope, Node: node, Status: rule.Skipped, Expects: "One device plugin."},
		{ID: "HOST-SWAP", Scope: rule.NodeScope, Node: node, Status: rule.OK, Expects: "No swap."},
	}
}

// readable returns the text of a page. It fails the test if the page loads or runs
// something.
func readable(t *testing.T, page string) string {
	t.Helper()
	var text strings.Builder
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return text.String()
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, page)
		}
		switch x := token.(type) {
		case xml.StartElement:
			if slices.Contains([]string{"script", "img", "image", "iframe", "object", "a", "use", "form"}, x.Name.Local) {
				t.Errorf("it has an element %s", x.Name.Local)
			}
			for _, a := range x.Attr {
				if name := a.Name.Local; strings.HasPrefix(name, "on") || name == "src" || name == "style" || name == "href" && a.Value != "data:," {
					t.Errorf("it has the attribute %s=%q", name, a.Value)
				}
			}
		case xml.CharData:
			text.Write(x)
		}
	}
}

// reportOf returns the page as a text.
func reportOf(t *testing.T, nodes []*fact.Facts, results []rule.Result, picture []byte) string {
	t.Helper()
	text, err := Report(nodes, results, picture, "unknown")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// judged returns the results of all rules for each of the nodes.
func judged(nodes ...*fact.Facts) (results []rule.Result) {
	for _, n := range nodes {
		results = append(results, rule.Judge(rule.Select(doctor.Rules(), rule.NodeScope, rule.PodScope, rule.ConfigScope), n)...)
	}
	return results
}

// pages returns the pages that are tested.
func pages(t *testing.T) map[string]string {
	one, two, three := factsOfTraining("node-1"), factsOfTraining("node-2"), factsOfTraining("node-3")
	one.NICs.List.Value[3].Carrier.Value = true
	three.NICs.List = fact.Failed[[]fact.NIC]("netlink", errors.New("operation not permitted"))
	four := factsOfTraining("node-4")
	four.NICs.List.Value = four.NICs.List.Value[2:]
	return map[string]string{
		"node": reportOf(t, []*fact.Facts{factsOfTraining("node-1")}, resultsOf("node-1"), Topology(trainingNode(t), "GPUs and NICs of node-1", "")),
		"cluster": reportOf(t, []*fact.Facts{one, two, three, four},
			slices.Concat(resultsOf("node-1")[2:], resultsOf("node-2"), resultsOf("node-3")[3:], resultsOf("node-4")), nil),
		"empty": reportOf(t, []*fact.Facts{{Node: "node-1"}}, nil, nil),
	}
}

func TestPagesAreTheExpectedOnes(t *testing.T) {
	for name, text := range pages(t) {
		readable(t, text)
		path := "testdata/report-" + name + ".html"
		if *update {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if text != string(want) {
			t.Errorf("the page is not %s (go test ./pkg/page -run Pages -update writes it):\n%s", path, text)
		}
	}
}

// fleet returns the page about 64 nodes with eight rails. All nodes lack a module. One rail of
// node-17 has no carrier, one rail of node-40 has another MTU, one rail of node-41 has another
// speed, and node-63 has no rail 7.
func fleet(t *testing.T) string {
	t.Helper()
	const source = "test"
	cluster := &fact.Facts{Schema: fact.Schema, Cluster: &fact.Cluster{}}
	var results []rule.Result
	for i := range 64 {
		f := factsOfTraining(fmt.Sprintf("node-%02d", i))
		list := f.NICs.List.Value[:8]
		for rail := range list {
			n := &list[rail]
			n.Vendor, n.Device = "15b3", "1021"
			n.AdminUp, n.Carrier = fact.Known(true, source), fact.Known(true, source)
			n.MTU, n.Mbps = fact.Known(9000, source), fact.Known(int64(400000), source)
			n.Rising, n.Flaps = fact.Known(fact.Rising{Seconds: 1}, source), fact.Known(fact.Flaps{Seconds: 86400}, source)
			n.Ports = fact.Known([]fact.Port{{Device: fmt.Sprintf("mlx5_%d", rail), Port: 1, State: "ACTIVE"}}, source)
		}
		switch i {
		case 17:
			list[3].Carrier.Value, list[3].Ports.Value[0].State = false, "DOWN"
		case 40:
			list[5].MTU.Value = 1500
		case 41:
			list[1].Mbps.Value = 200000
		case 63:
			list = list[:7]
		}
		f.NICs.List.Value = list
		f.Ledger.Attachments.Value = f.Ledger.Attachments.Value[:i%2*4]
		for rail := range list {
			if list[rail].Holder = ""; i%2 == 1 && rail < 4 {
				list[rail].Holder = f.Ledger.Attachments.Value[rail].Pod
			}
		}
		cluster.Cluster.Nodes = append(cluster.Cluster.Nodes, f)
		results = append(results, resultsOf(f.Node)[1], resultsOf(f.Node)[4])
		results = append(results, rule.Judge(slices.DeleteFunc(doctor.Rules(), func(r rule.Rule) bool { return r.ID != "NIC-CARRIER" }), f)...)
	}
	results = append(results, rule.Judge(rule.Select(doctor.Rules(), rule.ClusterScope), cluster)...)
	return reportOf(t, cluster.Cluster.Nodes, results, nil)
}

func TestMatrixShowsTheWorstFindingAndBadNodesFirst(t *testing.T) {
	text := fleet(t)
	_, matrix, _ := strings.Cut(text, "<tbody>")
	matrix, rest, _ := strings.Cut(matrix, "</tbody>")
	rows := strings.Split(strings.TrimSpace(matrix), "<tr>")[1:]
	if len(rows) != 64 {
		t.Fatalf("%d rows", len(rows))
	}
	found := map[string]string{}
	for i, row := range rows {
		node := row[strings.Index(row, "node-"):][:7]
		for rail, cell := range strings.Split(row, "<td ")[1:] {
			if _, mark, ok := strings.Cut(cell, `<div><span class="mark `); ok && strings.HasPrefix(cell, `class="cell bad"`) || strings.HasPrefix(cell, `class="cell poor"`) {
				mark, _, _ = strings.Cut(mark, "</span>")
				found[fmt.Sprintf("%s rail %d", node, rail)] = mark
				if i > 3 {
					t.Errorf("%s with a finding is row %d", node, i)
				}
			}
		}
	}
	want := map[string]string{
		"node-17 rail 3": `bad">✕ NIC-CARRIER`, "node-40 rail 5": `bad">✕ CLUSTER-MTU`, "node-41 rail 1": `poor">! CLUSTER-SPEED`, "node-63 rail 7": `poor">! RAIL-ABSENT`,
	}
	if fmt.Sprint(found) != fmt.Sprint(want) {
		t.Errorf("cells with findings: %v\nwant: %v", found, want)
	}
	if n := strings.Count(rest, "nvidia_peermem is not loaded"); n != 1 || !strings.Contains(rest, "<details><summary>on 64 nodes</summary>node-00, node-01, ") {
		t.Errorf("the finding of all nodes is there %d times", n)
	}
}

func TestPageSaysWhatIsKnownOfANIC(t *testing.T) {
	n := nodeOnPage(factsOfTraining("node-1"))
	for i, want := range []struct{ state, speed, near, errors, holders string }{
		0: {"✓ up", "400G", "PXB GPU0, GPU1", "✓ none", "training/llama-worker-0 2d"},
		3: {"✕ no carrier", "", "PXB GPU2, GPU3", "✓ none", "training/llama-worker-0 2d"},
		4: {"✓ up", "400G", "PXB GPU4, GPU5", "✓ none", "training/llama-worker-1 2d gone"},
		5: {"– set down", "", "PXB GPU4, GPU5", "✓ none", ""},
		6: {"✓ up", "400G", "PXB GPU6, GPU7", "! out_of_sequence +7, packet_seq_err +2, carrier lost 4 times in 24h", "web/front-0 0s, web/front-1 60s, web/front-2 2m, web/front-3 3m and 2 more"},
		7: {"? not known", "?", "PXB GPU6, GPU7", "? not known", ""},
		8: {"✓ up", "2500M", "", "✓ none", ""},
		9: {"– vfio-pci", "?", "", "? not known", ""},
	} {
		if want.state == "" {
			continue
		}
		row := n.NICs[i]
		var holders []string
		for _, h := range row.Holders {
			text := strings.TrimSpace(h.Pod + " " + h.Age)
			if h.Gone {
				text += " gone"
			}
			holders = append(holders, text)
		}
		who := strings.Join(holders, ", ")
		if row.More > 0 {
			who += fmt.Sprintf(" and %d more", row.More)
		}
		if row.sign.Sign+" "+row.sign.Text != want.state || row.Speed != want.speed || row.Near != want.near || row.Errors.Sign+" "+row.Errors.Text != want.errors || who != want.holders {
			t.Errorf("NIC %d: %+v, holders %q, want %+v", i, row, who, want)
		}
	}
	unknown := factsOfTraining("node-1")
	unknown.Ledger.Attachments = fact.Failed[[]fact.Attachment]("ledger", errors.New("denied"))
	if row := nodeOnPage(unknown).NICs[6]; len(row.Holders) != 1 || row.Holders[0].Pod != "? not known" {
		t.Errorf("without a ledger the NIC is held by %v", row.Holders)
	}
}

// evilFacts returns facts whose texts come from an attacker.
func evilFacts(evil string) *fact.Facts {
	f := factsOfTraining("node-1" + evil)
	n := &f.NICs.List.Value[0]
	n.Name, n.PCI, n.Protected, n.Holder = evil, evil, evil, evil
	n.Ports.Value[0].Device, n.Ports.Value[0].State = evil, evil
	n.Rising.Value.Counters = map[string]uint64{evil: 1}
	f.NICs.List.Value[9].Driver = evil
	f.Version = evil
	f.Ledger.Attachments.Value[0].Pod, f.Ledger.Attachments.Value[0].PCI = evil, evil
	far := 1 << 40
	f.NICs.List.Value[1].Rail = &far
	f.Ledger.Attachments.Value[1].Created = time.Unix(1<<40, 0)
	f.NICs.List.Value[6].Flaps.Value.Seconds = 1e300
	return f
}

const evilName = `</style></svg>"'><script>pwned=1</script><img src=x onerror=pwned=1>{{.}}` + "\x1b\x00\u202e\ufffe"

func TestPageShowsHostileNamesAsText(t *testing.T) {
	many := &fact.Facts{Node: "many", NICs: &fact.NICs{}}
	for rail := range 3 * maxColumns {
		many.NICs.List.Value = append(many.NICs.List.Value, fact.NIC{Name: "x", Rail: &rail})
	}
	many.NICs.List.Source = "test"
	broken := factsOfTraining("broken")
	broken.NICs.List = fact.Failed[[]fact.NIC](evilName, errors.New(evilName))
	nodes := []*fact.Facts{evilFacts(evilName), many, broken}
	text := reportOf(t, nodes, judged(nodes...), nil)
	shown := readable(t, text)
	for _, want := range []string{`<script>pwned=1</script>`, `onerror=pwned=1`, `{{.}}`, fmt.Sprintf("And %d more rails.", 2*maxColumns+1)} {
		if !strings.Contains(shown, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.ContainsAny(text, "\x1b\x00\u202e\ufffe") {
		t.Error("a control character is on the page")
	}
}
