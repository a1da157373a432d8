package browser

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestScriptsAndRequestsAreNoticed: a page with a mistake has complaints.
func TestScriptsAndRequestsAreNoticed(t *testing.T) {
	b := New(t)
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
		if all := strings.Join(Complaints(b.Open(address), address), "\n"); !strings.Contains(all, c.want) {
			t.Errorf("%s: %q", name, all)
		}
	}
}
