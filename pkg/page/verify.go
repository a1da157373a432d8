package page

import (
	_ "embed"

	"github.com/rail-cni/rail-cni/pkg/verify"
)

// measured is the data for the page about measurements. A cell has a color, a sign and a number, so
// that the page can be printed in black and white.
type measured struct {
	Title string
	*verify.Result
	Healthy  bool
	Summary  string
	Findings []measuredFinding
	Unknown  []string
	Rails    []int
	Rows     []measuredNode
}

type measuredFinding struct {
	Kind     verify.Kind
	Where    string
	Evidence string
}

type measuredNode struct {
	Node  string
	Cells []measuredCell
}

type measuredCell struct {
	Class string
	verify.Cell
}

//go:embed verify.html
var verifyHTML string

var verifyTemplate = newTemplate(verifyHTML)

// classes has the class in the style sheet for the sign of a cell.
var classes = map[verify.Sign]string{verify.SignOK: "good", verify.SignMaybe: "poor", verify.SignBad: "bad", verify.SignUnknown: "none"}

// Measured returns the page about the result.
func Measured(r *verify.Result) ([]byte, error) {
	p := &measured{Title: "rails: " + string(r.Status), Result: r, Healthy: r.Status == verify.Healthy, Summary: r.Summary(), Unknown: r.Unmeasured()}
	for i := range r.Findings {
		f := &r.Findings[i]
		p.Findings = append(p.Findings, measuredFinding{f.Kind, r.Where(f), f.Evidence})
	}
	for rail := range r.Rails {
		p.Rails = append(p.Rails, rail)
	}
	for _, node := range r.Nodes {
		row := measuredNode{Node: node}
		for rail := range r.Rails {
			c := r.Cell(verify.End{Node: node, Rail: rail})
			row.Cells = append(row.Cells, measuredCell{classes[c.Sign], c})
		}
		p.Rows = append(p.Rows, row)
	}
	return render(verifyTemplate, p)
}
