package agent

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// exposition is a set of metrics in Prometheus' text format, version 0.0.4. The
// client library is not used because the driver names RDMA's metrics only at
// run time, and because the library depends on protocol buffers.
type exposition struct{ families map[string]*family }

type family struct {
	kind, help string
	lines      []string
}

// The kinds of a family.
const (
	counter   = "counter"
	gauge     = "gauge"
	histogram = "histogram"
)

// labels are pairs of a name and a value. A pair with an empty value is left
// out.
type labels []string

func (l labels) String() string {
	var pairs []string
	for i := 0; i+1 < len(l); i += 2 {
		if l[i+1] != "" {
			pairs = append(pairs, l[i]+`="`+escape.Replace(strings.ToValidUTF8(l[i+1], "\uFFFD"))+`"`)
		}
	}
	if len(pairs) == 0 {
		return ""
	}
	return "{" + strings.Join(pairs, ",") + "}"
}

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// family returns the family of this name, with the first caller's help.
func (e *exposition) family(name, kind, help string) *family {
	if e.families == nil {
		e.families = map[string]*family{}
	}
	f := e.families[name]
	if f == nil {
		f = &family{kind: kind, help: help}
		e.families[name] = f
	}
	return f
}

// add adds a value of a counter or gauge.
func (e *exposition) add(name, kind, help string, value float64, l labels) {
	f := e.family(name, kind, help)
	f.lines = append(f.lines, name+l.String()+" "+number(value))
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// distribution adds a histogram's values: counts[i] is the number of values up
// to bounds[i] and above the bound before; the last count is that of the values
// above all bounds.
func (e *exposition) distribution(name, help string, bounds []float64, counts []uint64, sum float64, l labels) {
	f := e.family(name, histogram, help)
	total := uint64(0)
	for i, c := range counts {
		bound := "+Inf"
		if i < len(bounds) {
			bound = number(bounds[i])
		}
		total += c
		f.lines = append(f.lines, fmt.Sprintf("%s_bucket%s %d", name, append(slices.Clone(l), "le", bound), total))
	}
	f.lines = append(f.lines, name+"_sum"+l.String()+" "+number(sum), fmt.Sprintf("%s_count%s %d", name, l, total))
}

// WriteTo writes all families, sorted by name.
func (e *exposition) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(e.families)) {
		f := e.families[name]
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, cmp.Or(f.help, name), name, f.kind)
		for _, line := range f.lines {
			b.WriteString(line + "\n")
		}
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}
