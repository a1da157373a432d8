package page

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/rail-cni/rail-cni/integration/browser"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// TestBrowserOpensPagesWithoutAComplaint opens the pages in a browser, once as wide as a phone and
// once as wide as a desktop. The browser must request nothing, log nothing and run no script. Only
// tables and the picture may be wider than the screen. With RAIL_CNI_SCREENSHOTS=DIR the test keeps
// the screenshots.
func TestBrowserOpensPagesWithoutAComplaint(t *testing.T) {
	b := browser.New(t)
	nodes := []*fact.Facts{evilFacts(evilName), factsOfTraining("node-2")}
	results := judged(nodes...)
	all := pages(t)
	all["hostile"] = reportOf(t, nodes, results, nil)
	all["hostile-node"] = reportOf(t, nodes[:1], results, Topology(trainingNode(t), evilName, ""))
	all["measured"], all["hostile-measured"] = measuredPage(t, ""), measuredPage(t, evilName)
	all["fleet"] = fleet(t)
	dir := t.TempDir()
	for name, text := range all {
		file := filepath.Join(dir, name+".html")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		address := (&url.URL{Scheme: "file", Path: file}).String()
		for _, width := range []int{390, 1400} {
			b.Call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600})
			for _, all := range browser.Complaints(b.Open(address), address) {
				t.Errorf("%s at %d px: %s", name, width, all)
			}
			if name != "fleet" { // whose 64 tables are those of the page "cluster"
				b.Evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
			}
			if over := b.Evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"); over != 0.0 {
				t.Errorf("%s at %d px is %v px wider than the screen", name, width, over)
			}
			if pwned := b.Evaluate("typeof pwned"); pwned != "undefined" {
				t.Errorf("%s: a name ran as a script", name)
			}
			b.Screenshot(fmt.Sprintf("%s-%d", name, width))
		}
	}
	// These screenshots are in black and white, and in a browser with dark pages.
	file := (&url.URL{Scheme: "file", Path: filepath.Join(dir, "node.html")}).String()
	b.Call("Emulation.setEmulatedVisionDeficiency", map[string]any{"type": "achromatopsia"})
	b.Open(file)
	b.Screenshot("node-gray")
	b.Call("Emulation.setEmulatedVisionDeficiency", map[string]any{"type": "none"})
	b.Call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]any{{"name": "prefers-color-scheme", "value": "dark"}}})
	b.Open(file)
	b.Screenshot("node-dark")
	// On paper the nodes of a finding cannot be unfolded.
	b.Call("Emulation.setEmulatedMedia", map[string]any{"media": "print"})
	b.Open((&url.URL{Scheme: "file", Path: filepath.Join(dir, "fleet.html")}).String())
	const unfolded = "document.querySelector('.rule details').offsetHeight > 1.5 * document.querySelector('.rule summary').offsetHeight"
	if b.Evaluate(unfolded) != true {
		t.Error("the nodes of a finding are not printed")
	}
	b.Screenshot("fleet-print")
}
