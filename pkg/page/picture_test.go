package page

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// xhtml returns the styles and the body of an HTML page as XML, for use in a picture.
func xhtml(t *testing.T, text string) string {
	t.Helper()
	root, err := html.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	quote := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;").Replace
	var write func(n *html.Node)
	write = func(n *html.Node) {
		name := n.Data
		switch {
		case n.Type == html.TextNode:
			b.WriteString(quote(n.Data))
			return
		case n.Type == html.ElementNode && slices.Contains([]string{"title", "meta", "link"}, name):
			return
		case n.Type == html.ElementNode && name != "html" && name != "head":
			fmt.Fprintf(&b, "<%s", name)
			if name == "body" {
				b.WriteString(` xmlns="http://www.w3.org/1999/xhtml"`)
			}
			for _, a := range n.Attr {
				fmt.Fprintf(&b, ` %s="%s"`, a.Key, quote(a.Val))
			}
			b.WriteByte('>')
		}
		for child := n.FirstChild; child != nil; child = child.NextSibling {
			write(child)
		}
		if n.Type == html.ElementNode && name != "html" && name != "head" {
			fmt.Fprintf(&b, "</%s>", name)
		}
	}
	write(root)
	return b.String()
}

// TestPicturesOfTheDocumentsAreOurs: the pictures in the documents must show the output of the
// programs. The page is cut off at the bottom, as on a screen.
func TestPicturesOfTheDocumentsAreOurs(t *testing.T) {
	report := xhtml(t, pages(t)["cluster"])
	style, body, _ := strings.Cut(report, "</style>")
	style = strings.TrimPrefix(strings.TrimSpace(style), "<style>")
	pictures := map[string]string{
		"topology": string(Topology(trainingNode(t), "GPUs and NICs of node-1", "")),
		"report": fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1180 640" role="img" aria-label="The page of railctl report for four nodes">
<style>%s</style>
<foreignObject width="1180" height="640">%s</foreignObject>
</svg>
`, style, strings.TrimSpace(body)),
	}
	for name, text := range pictures {
		path := "../../docs/picture/" + name + ".svg"
		if *update {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		have, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if text != string(have) {
			t.Errorf("%s is stale: go test ./pkg/page -run Pictures -update writes it", path)
		}
	}
}
