package page

import (
	"bytes"
	_ "embed"
	"html/template"
	"strconv"
	"unicode/utf8"
)

//go:embed page.html
var frameHTML string

// frame has what all pages have: the head, the styles, and signs. A page defines "body".
var frame = template.Must(template.New("page.html").Parse(frameHTML))

// newTemplate returns the template of a page in the frame.
func newTemplate(body string) *template.Template {
	return template.Must(template.Must(frame.Clone()).Parse(body))
}

// render returns the page with these data, which have a Title, without control characters.
func render(t *template.Template, data any) ([]byte, error) {
	var out bytes.Buffer
	if err := t.Execute(&out, data); err != nil {
		return nil, err
	}
	return bytes.Map(func(r rune) rune {
		if r == '\n' || strconv.IsPrint(r) {
			return r
		}
		return utf8.RuneError
	}, out.Bytes()), nil
}

// sign is a state with a sign for readers who cannot tell the colors apart.
type sign struct {
	Class string // of the style sheet, names the color
	Sign  string
	Text  string
}
