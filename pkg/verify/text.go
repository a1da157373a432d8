package verify

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Cell is an end in the matrix of nodes and rails. Its texts may come from a pod.
type Cell struct {
	Sign  Sign
	Text  string // the measurement of the end, or its worst finding
	Title string // the end, with the evidence of all its findings
}

// Sign shows the state of an end as one character.
type Sign string

// These are the signs of cells.
const (
	SignOK      Sign = "·"
	SignMaybe   Sign = "?" // this end or another end has the defect
	SignBad     Sign = "✗"
	SignUnknown Sign = "-"
)

// Cell returns the cell of an end. It has the worst finding about the end. Without a finding, it
// has the median round trip of the end's paths.
func (r *Result) Cell(e End) Cell {
	c := Cell{Sign: SignUnknown, Title: e.String()}
	state := r.end(e)
	if state == nil {
		return c
	}
	c.Title += ", " + printable(state.Interface.Name)
	var rtt, rate []float64
	sent, received := 0, 0
	for i := range r.Paths {
		if p := &r.Paths[i]; p.From == e || p.To == e {
			sent, received = sent+p.Small.Sent, received+p.Small.Received
			if p.Small.Received > 0 {
				rtt = append(rtt, p.Small.RTT)
			}
			if p.RDMA != nil && p.RDMA.Bandwidth > 0 {
				rate = append(rate, p.RDMA.Bandwidth)
			}
		}
	}
	if sent > 0 {
		c.Sign, c.Text = SignOK, duration(median(rtt))
		if len(rate) > 0 {
			c.Text += fmt.Sprintf(", %.1f Gb/s", median(rate))
		}
		c.Title += fmt.Sprintf(": %d of %d short packets answered", received, sent)
	}
	for _, f := range r.Findings {
		if !slices.Contains(f.Ends, e) {
			continue
		}
		if f.Either {
			if c.Sign != SignBad {
				c.Sign = SignMaybe
			}
		} else {
			c.Sign = SignBad
		}
		c.Text = f.short()
		c.Title += "; " + f.Evidence
	}
	return c
}

// short returns a short text about the finding that fits in a cell.
func (f *Finding) short() string {
	switch f.Kind {
	case KindLatency:
		return duration(f.Value)
	case KindRDMALatency:
		return fmt.Sprintf("rdma %.0f µs", f.Value)
	case KindBandwidth:
		return fmt.Sprintf("%.1f Gb/s", f.Value)
	case KindLoss:
		return fmt.Sprintf("%.0f%% lost", f.Value)
	case KindMTU:
		return fmt.Sprintf("mtu %.0f", f.Value)
	case KindUnreachable:
		return "silent"
	}
	return string(f.Kind)
}

// Where returns the ends of a finding as a text, for example "node-b rail 3 (net4)".
func (r *Result) Where(f *Finding) string {
	const maxShown = 6
	join := ", "
	if f.Either {
		join = " or "
	}
	rails := map[int]int{}
	for _, e := range f.Ends {
		rails[e.Rail]++
	}
	if rails[f.Ends[0].Rail] == len(r.Nodes) && len(r.Nodes) > 2 && len(rails) == 1 {
		return fmt.Sprintf("rail %d of all nodes", f.Ends[0].Rail)
	}
	var names []string
	for i, e := range f.Ends {
		if i == maxShown {
			names = append(names, fmt.Sprintf("%d more", len(f.Ends)-maxShown))
			break
		}
		name := e.String()
		if s := r.end(e); s != nil && s.Interface.Name != "" {
			name += " (" + s.Interface.Name + ")"
		}
		names = append(names, printable(name))
	}
	return strings.Join(names, join)
}

// WriteText writes the findings, the matrix of nodes and rails, and a summary as the last line.
func (r *Result) WriteText(w io.Writer) error {
	var b strings.Builder
	for i := range r.Findings {
		f := &r.Findings[i]
		fmt.Fprintf(&b, "%s  %s: %s\n", strings.ToUpper(string(f.Kind)), r.Where(f), printable(f.Evidence))
	}
	for _, u := range r.Unmeasured() {
		fmt.Fprintf(&b, "UNKNOWN  %s\n", printable(u))
	}
	if b.Len() > 0 {
		b.WriteString("\n")
	}
	r.matrix(&b)
	b.WriteString("\n" + r.Summary() + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// Unmeasured returns the things that could not be measured, with the reasons.
func (r *Result) Unmeasured() []string {
	return append(slices.Clone(r.Unknown), r.unmeasured()...)
}

// unmeasured returns the reasons why paths could not be measured. Each reason is returned once.
func (r *Result) unmeasured() (reasons []string) {
	for i := range r.Paths {
		p := &r.Paths[i]
		if p.Error == "" {
			continue
		}
		if from, to := r.end(p.From), r.end(p.To); from == nil || to == nil || from.Interface.Problem+to.Interface.Problem != "" {
			continue // a finding already explains it
		}
		if s := fmt.Sprintf("%s to %s: %s", p.From, p.To, p.Error); len(reasons) < 10 {
			reasons = append(reasons, s)
		}
	}
	return reasons
}

// matrix writes the table of nodes and rails to b.
func (r *Result) matrix(b *strings.Builder) {
	rows := [][]string{{"NODE"}}
	for k := range r.Rails {
		rows[0] = append(rows[0], fmt.Sprintf("RAIL %d", k))
	}
	for _, n := range r.Nodes {
		row := []string{printable(n)}
		for k := range r.Rails {
			c := r.Cell(End{n, k})
			row = append(row, strings.TrimSpace(string(c.Sign)+" "+c.Text))
		}
		rows = append(rows, row)
	}
	width := make([]int, r.Rails+1)
	for _, row := range rows {
		for i, s := range row {
			width[i] = max(width[i], utf8.RuneCountInString(s))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, s := range row {
			line.WriteString(s + strings.Repeat(" ", width[i]-utf8.RuneCountInString(s)+2))
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}

// Summary returns one line about what was measured and about the outcome.
func (r *Result) Summary() string {
	crossings := ""
	if r.Fabric == Isolated {
		crossings = fmt.Sprintf(", %s between different rails", plural(r.Tested, "path"))
	}
	return fmt.Sprintf("%s × %s, %s%s in %.1f s: %s, %s", plural(len(r.Nodes), "node"), plural(r.Rails, "rail"), plural(len(r.Paths), "path"), crossings, r.Seconds, r.Status, plural(len(r.Findings), "finding"))
}

// printable returns the text without control characters. It is needed because names of nodes and
// interfaces, and errors, may come from a pod.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}
