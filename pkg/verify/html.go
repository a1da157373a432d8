package verify

import (
	"html/template"
	"io"
	"strings"
)

// page is one file that needs no other. A cell has a sign and a number beside its color, so
// that it can be printed in black and white.
var page = template.Must(template.New("verify").Parse(`<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>rails: {{.Result.Status}}</title>
<style>
body { font: 15px/1.4 system-ui, sans-serif; margin: 1.5em; color: #111; background: #fff }
h1 { font-size: 1.3em }
.scroll { overflow-x: auto }
table { border-collapse: collapse; margin: 1em 0 }
th, td { border: 1px solid #888; padding: .35em .6em; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
th:first-child { text-align: left }
td.ok { background: #e5f3e5 }
td.bad { background: #b3261e; color: #fff; font-weight: bold; border: 2px solid #000 }
td.maybe { background: #ffe08a; border: 2px dashed #000 }
td.unknown { background: #eee }
li { margin: .3em 0 }
</style>
<h1>Rails: {{.Result.Status}}</h1>
<p>{{.Summary}}<br>{{.Result.Taken.Format "2006-01-02 15:04:05 MST"}}, railctl {{.Result.Version}}</p>
{{if .Findings}}<ul>
{{range .Findings}}<li><b>{{.Kind}}</b> {{.Where}}: {{.Evidence}}</li>
{{end}}</ul>
{{else if eq .Result.Status "healthy"}}<p>Nothing is wrong.</p>
{{end}}{{if .Unknown}}<p>Not measured:</p>
<ul>
{{range .Unknown}}<li>{{.}}</li>
{{end}}</ul>
{{end}}<div class="scroll"><table>
<tr><th>node</th>{{range .Rails}}<th>rail {{.}}</th>{{end}}</tr>
{{range .Rows}}<tr><th>{{.Node}}</th>{{range .Cells}}<td class="{{.Class}}" title="{{.Title}}">{{.Sign}} {{.Text}}</td>{{end}}</tr>
{{end}}</table></div>
<p>A cell is the median round trip of the end's paths, or what is wrong: ✗ it has a defect; ? it or another end has one; · nothing is wrong; - it was not measured.</p>
</html>
`))

type htmlFinding struct {
	Kind     Kind
	Where    string
	Evidence string
}

type htmlCell struct{ Class, Title, Sign, Text string }

type htmlRow struct {
	Node  string
	Cells []htmlCell
}

// WriteHTML writes the result as one page without any other resource.
func (r *Result) WriteHTML(w io.Writer) error {
	v := struct {
		Result   *Result
		Summary  string
		Findings []htmlFinding
		Unknown  []string
		Rails    []int
		Rows     []htmlRow
	}{Result: r, Summary: r.summary()}
	v.Unknown = append(append(v.Unknown, r.Unknown...), r.unmeasured()...)
	for i := range r.Findings {
		f := &r.Findings[i]
		v.Findings = append(v.Findings, htmlFinding{f.Kind, r.where(f), f.Evidence})
	}
	for k := range r.Rails {
		v.Rails = append(v.Rails, k)
	}
	for _, n := range r.Nodes {
		row := htmlRow{Node: n}
		for k := range r.Rails {
			c := r.cellOf(End{n, k})
			row.Cells = append(row.Cells, htmlCell{c.class, c.title, c.sign, c.text})
		}
		v.Rows = append(v.Rows, row)
	}
	var b strings.Builder
	if err := page.Execute(&b, v); err != nil {
		return err
	}
	for line := range strings.Lines(b.String()) {
		if _, err := io.WriteString(w, printable(strings.TrimSuffix(line, "\n"))+"\n"); err != nil {
			return err
		}
	}
	return nil
}
