package page

import (
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/verify"
)

// measuredPage returns the page about three nodes with four rails. Rail 1 of the third node is
// slow, rail 3 of the first node has a small MTU, and rail 2 of either the second or the third node
// loses packets. name is put into each name that a stranger may have chosen.
func measuredPage(t *testing.T, name string) string {
	t.Helper()
	r := &verify.Result{Taken: time.Date(2026, 11, 26, 9, 0, 0, 0, time.UTC), Version: "v1" + name, Status: verify.Defects, Nodes: []string{"n0", "n1", "n2"}, Rails: 4}
	for _, node := range r.Nodes {
		for rail := range r.Rails {
			r.Ends = append(r.Ends, verify.EndState{End: verify.End{Node: node, Rail: rail}, Interface: verify.Interface{Name: "net2" + name}})
			if node != "n0" {
				r.Paths = append(r.Paths, verify.Path{
					From: verify.End{Node: "n0", Rail: rail}, To: verify.End{Node: node, Rail: rail}, Small: verify.Traffic{Sent: 10, Received: 10, RTT: 5000},
				})
			}
		}
	}
	r.Findings = []verify.Finding{
		{Kind: verify.KindLatency, Ends: []verify.End{{Node: "n2", Rail: 1}}, Value: 5000, Evidence: "late" + name},
		{Kind: verify.KindMTU, Ends: []verify.End{{Node: "n0", Rail: 3}}, Value: 1500, Evidence: "small" + name},
		{Kind: verify.KindLoss, Ends: []verify.End{{Node: "n1", Rail: 2}, {Node: "n2", Rail: 2}}, Either: true, Value: 50, Evidence: "lost" + name},
	}
	r.Unknown = []string{"a node" + name}
	text, err := Measured(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestMeasuredPageNeedsNoOtherFileAndNoColor(t *testing.T) {
	text := measuredPage(t, "")
	readable(t, text)
	for _, s := range []string{"src=", "url(", "@import", "http:"} {
		if strings.Contains(text, s) {
			t.Errorf("the page has %q", s)
		}
	}
	for class, want := range map[string]int{"bad": 2, "poor": 2, "good": 8, "none": 0} {
		if n := strings.Count(text, `<td class="value `+class+`"`); n != want {
			t.Errorf("%d cells are %s, not %d", n, class, want)
		}
	}
	for _, s := range []string{"✗ 5.0 ms", "✗ mtu 1500", "? 50% lost", "<b>latency</b> n2 rail 1 (net2): late", "· 5.0 ms", "Not measured:", "<li>a node</li>"} {
		if !strings.Contains(text, s) {
			t.Errorf("the page lacks %q\n%s", s, text)
		}
	}
}

func TestMeasuredPageShowsHostileNamesAsText(t *testing.T) {
	text := measuredPage(t, evilName)
	if shown := readable(t, text); !strings.Contains(shown, "<script>pwned=1</script>") || !strings.Contains(shown, "{{.}}") {
		t.Errorf("a name is not shown as it is:\n%s", shown)
	}
	if strings.ContainsAny(text, "\x1b\x00\u202e\ufffe") {
		t.Error("a control character is on the page")
	}
}
