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

// frame is the template of the parts that all pages share: the head, the styles and the signs. Each
// page defines the template "body".
var frame = template.Must(template.New("page.html").Parse(frameHTML))

// newTemplate returns the template of a page in the frame.
func newTemplate(body string) *template.Template {
	return template.Must(template.Must(frame.Clone()).Parse(body))
}

// render returns the page with these data, without control characters. The data must have a field
// Title.
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

// sign is a state with its color, and with a sign for readers who cannot tell the colors apart.
type sign struct {
	Class string // the class in the style sheet, which sets the color
	Sign  string
	Text  string
}
