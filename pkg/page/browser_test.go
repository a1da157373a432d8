package page

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/pkg/doctor"
)

// browser is a headless Chromium. Tests speak its DevTools protocol by two pipes: JSON
// objects, each with a zero byte behind it.
type browser struct {
	t       *testing.T
	to      *os.File
	answers chan map[string]any
	session string
	last    int
	events  []map[string]any // of the page, that came meanwhile
}

// browserTime bounds each answer of the browser, on a busy machine.
const browserTime = 2 * time.Minute

func newBrowser(t *testing.T) *browser {
	t.Helper()
	program, err := need.Installed("chromium", "chromium")
	need.NoError(t, err)
	commands, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, answers, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--user-data-dir="+t.TempDir(), "--remote-debugging-pipe", "about:blank")
	cmd.ExtraFiles = []*os.File{commands, answers} // descriptors 3 and 4
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = commands.Close(), answers.Close()
	b := &browser{t: t, to: to, answers: make(chan map[string]any, 1000)}
	t.Cleanup(func() {
		_ = to.Close() // ends the browser
		timer := time.AfterFunc(browserTime, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		timer.Stop()
		_ = from.Close()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	go func() {
		defer close(b.answers)
		for r := bufio.NewReader(from); ; {
			text, err := r.ReadBytes(0)
			if err != nil {
				return
			}
			var answer map[string]any
			if json.Unmarshal(text[:len(text)-1], &answer) == nil {
				b.answers <- answer
			}
		}
	}()
	target := b.call("Target.createTarget", map[string]any{"url": "about:blank"})
	attached := b.call("Target.attachToTarget", map[string]any{"targetId": target["targetId"], "flatten": true})
	b.session, _ = attached["sessionId"].(string)
	for _, domain := range []string{"Page", "Network", "Log", "Runtime"} {
		b.call(domain+".enable", nil)
	}
	return b
}

// next returns the next answer or event.
func (b *browser) next(waits string) map[string]any {
	b.t.Helper()
	select {
	case answer, ok := <-b.answers:
		if !ok {
			b.t.Fatalf("the browser ended while the test waits for %s", waits)
		}
		return answer
	case <-time.After(browserTime):
		b.t.Fatalf("the browser does not answer %s", waits)
	}
	return nil
}

// call calls a method, and returns its result.
func (b *browser) call(method string, parameters map[string]any) map[string]any {
	b.t.Helper()
	b.last++
	message := map[string]any{"id": b.last, "method": method}
	if parameters != nil {
		message["params"] = parameters
	}
	if b.session != "" {
		message["sessionId"] = b.session
	}
	text, err := json.Marshal(message)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.to.Write(append(text, 0)); err != nil {
		b.t.Fatal(err)
	}
	for {
		answer := b.next(method)
		if id, ok := answer["id"].(float64); !ok || int(id) != b.last {
			b.events = append(b.events, answer)
			continue
		}
		if answer["error"] != nil {
			b.t.Fatalf("%s: %v", method, answer["error"])
		}
		result, _ := answer["result"].(map[string]any)
		return result
	}
}

// open opens a file, waits until it is loaded, and returns the events meanwhile.
func (b *browser) open(address string) []map[string]any {
	b.t.Helper()
	b.events = nil
	b.call("Page.navigate", map[string]any{"url": address})
	loaded := func(e map[string]any) bool { return e["method"] == "Page.loadEventFired" }
	for !slices.ContainsFunc(b.events, loaded) {
		b.events = append(b.events, b.next(address))
	}
	b.evaluate("document.fonts.ready.then(() => 1)") // the layout is done; later events are there
	return b.events
}

// evaluate returns the value of a JavaScript expression on the page.
func (b *browser) evaluate(expression string) any {
	b.t.Helper()
	answer := b.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true})
	if answer["exceptionDetails"] != nil {
		b.t.Fatalf("%s: %v", expression, answer["exceptionDetails"])
	}
	result, _ := answer["result"].(map[string]any)
	return result["value"]
}

// screenshot writes a picture of the whole page, if RAIL_CNI_SCREENSHOTS names a directory.
func (b *browser) screenshot(name string) {
	b.t.Helper()
	answer := b.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true})
	text, _ := answer["data"].(string)
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(data) < 1000 {
		b.t.Fatalf("a screenshot of %d bytes: %v", len(data), err)
	}
	if dir := os.Getenv("RAIL_CNI_SCREENSHOTS"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, name+".png"), data, 0o600); err != nil {
			b.t.Fatal(err)
		}
	}
}

// complaints returns the messages on the console, the exceptions, and the requests other than
// for the page.
func complaints(events []map[string]any, address string) (all []string) {
	for _, e := range events {
		parameters, _ := e["params"].(map[string]any)
		switch e["method"] {
		case "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded":
			all = append(all, fmt.Sprint(e["method"], parameters))
		case "Network.requestWillBeSent":
			request, _ := parameters["request"].(map[string]any)
			if request["url"] != address && request["url"] != "data:," {
				all = append(all, fmt.Sprint("request ", request["url"]))
			}
		}
	}
	return all
}

// TestBrowserOpensPagesWithoutAComplaint opens the pages in a browser, as wide as a phone and
// as a desktop: nothing is requested, nothing is logged, no script runs, and only tables and
// the picture are wider than the screen. RAIL_CNI_SCREENSHOTS=DIR keeps the pictures.
func TestBrowserOpensPagesWithoutAComplaint(t *testing.T) {
	b := newBrowser(t)
	nodes := []*doctor.Facts{evilFacts(evilName), factsOfTraining("node-2")}
	results := judged(nodes...)
	all := pages(t)
	all["hostile"] = reportOf(t, nodes, results, nil)
	all["hostile-node"] = reportOf(t, nodes[:1], results, Topology(trainingNode(t), evilName, ""))
	all["measured"], all["hostile-measured"] = measuredPage(t, ""), measuredPage(t, evilName)
	dir := t.TempDir()
	for name, text := range all {
		file := filepath.Join(dir, name+".html")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		address := (&url.URL{Scheme: "file", Path: file}).String()
		for _, width := range []int{390, 1400} {
			b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600})
			for _, all := range complaints(b.open(address), address) {
				t.Errorf("%s at %d px: %s", name, width, all)
			}
			b.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
			if over := b.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"); over != 0.0 {
				t.Errorf("%s at %d px is %v px wider than the screen", name, width, over)
			}
			if pwned := b.evaluate("typeof pwned"); pwned != "undefined" {
				t.Errorf("%s: a name ran as a script", name)
			}
			b.screenshot(fmt.Sprintf("%s-%d", name, width))
		}
	}
	// Black and white, and what a browser with dark pages shows.
	file := (&url.URL{Scheme: "file", Path: filepath.Join(dir, "node.html")}).String()
	b.call("Emulation.setEmulatedVisionDeficiency", map[string]any{"type": "achromatopsia"})
	b.open(file)
	b.screenshot("node-gray")
	b.call("Emulation.setEmulatedVisionDeficiency", map[string]any{"type": "none"})
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]any{{"name": "prefers-color-scheme", "value": "dark"}}})
	b.open(file)
	b.screenshot("node-dark")
}

// TestBrowserTestNoticesScriptsAndRequests: a page with a mistake fails the test above.
func TestBrowserTestNoticesScriptsAndRequests(t *testing.T) {
	b := newBrowser(t)
	for name, c := range map[string]struct{ page, want string }{
		"a request": {`<img src="http://127.0.0.1:9/x.png">`, "http://127.0.0.1:9/x.png"},
		"a message": {`<script>console.log("hello")</script>`, "hello"},
		"an error":  {`<script>nothing.at.all</script>`, "ReferenceError"},
		"policy":    {`<meta http-equiv="Content-Security-Policy" content="default-src 'none'"><script>pwned=1</script>`, "Content Security Policy"},
	} {
		file := filepath.Join(t.TempDir(), "bad.html")
		if err := os.WriteFile(file, []byte(c.page), 0o600); err != nil {
			t.Fatal(err)
		}
		address := (&url.URL{Scheme: "file", Path: file}).String()
		if all := strings.Join(complaints(b.open(address), address), "\n"); !strings.Contains(all, c.want) {
			t.Errorf("%s: %q", name, all)
		}
	}
}
