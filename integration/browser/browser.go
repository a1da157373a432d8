package browser

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
)

// Browser is a headless Chromium with one page. It speaks the DevTools protocol by two pipes:
// JSON objects, each with a zero byte behind it.
type Browser struct {
	t       *testing.T
	to      *os.File
	answers chan map[string]any
	session string
	last    int
	events  []map[string]any // of the page, that came meanwhile
}

// browserTime bounds each answer of the browser, on a busy machine.
const browserTime = 2 * time.Minute

// New starts a browser, which ends with the test. Without Chromium it skips the test.
func New(t *testing.T) *Browser {
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
	b := &Browser{t: t, to: to, answers: make(chan map[string]any, 1000)}
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
	target := b.Call("Target.createTarget", map[string]any{"url": "about:blank"})
	attached := b.Call("Target.attachToTarget", map[string]any{"targetId": target["targetId"], "flatten": true})
	b.session, _ = attached["sessionId"].(string)
	for _, domain := range []string{"Page", "Network", "Log", "Runtime"} {
		b.Call(domain+".enable", nil)
	}
	return b
}

// next returns the next answer or event.
func (b *Browser) next(waits string) map[string]any {
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

// Call calls a method, and returns its result.
func (b *Browser) Call(method string, parameters map[string]any) map[string]any {
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

// Open opens a file, waits until it is loaded, and returns the events meanwhile.
func (b *Browser) Open(address string) []map[string]any {
	b.t.Helper()
	b.events = nil
	b.Call("Page.navigate", map[string]any{"url": address})
	loaded := func(e map[string]any) bool { return e["method"] == "Page.loadEventFired" }
	for !slices.ContainsFunc(b.events, loaded) {
		b.events = append(b.events, b.next(address))
	}
	b.Evaluate("document.fonts.ready.then(() => 1)") // the layout is done; later events are there
	return b.events
}

// Evaluate returns the value of a JavaScript expression on the page.
func (b *Browser) Evaluate(expression string) any {
	b.t.Helper()
	answer := b.Call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true})
	if answer["exceptionDetails"] != nil {
		b.t.Fatalf("%s: %v", expression, answer["exceptionDetails"])
	}
	result, _ := answer["result"].(map[string]any)
	return result["value"]
}

// Screenshot writes a picture of the whole page, if RAIL_CNI_SCREENSHOTS names a directory.
func (b *Browser) Screenshot(name string) {
	b.t.Helper()
	answer := b.Call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true})
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

// Complaints returns the messages on the console, the exceptions, and the requests other than
// for the page.
func Complaints(events []map[string]any, address string) (all []string) {
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
