package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/network"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/doctor/subject"
)

// These are the sentences that [Notes] returns.
const (
	noteNoRDMA  = "there is no RDMA device on this machine, so rules about rails have nothing to check"
	noteNoRails = "no rails are known, because the node file has none; checked: %s (to name the rails: railctl rails discover)"
)

// Notes returns sentences for the beginning of a report. They say what the rules could check on
// nodes without rails. For a node with rails there is no sentence.
func Notes(f *fact.Facts) []string {
	if f.Cluster == nil {
		if note := noteOn(f); note != "" {
			return []string{note}
		}
		return nil
	}
	byText := map[string][]string{}
	subject.EachNode(f, func(n *fact.Facts) {
		if note := noteOn(n); note != "" {
			byText[note] = append(byText[note], rule.Clean(n.Node))
		}
	})
	var notes []string
	for _, note := range slices.Sorted(maps.Keys(byText)) {
		notes = append(notes, rule.Shortened(byText[note])+": "+note)
	}
	return notes
}

// noteOn returns the sentence about a node, "" for none.
func noteOn(f *fact.Facts) string {
	if !subject.WithoutRails(f) {
		return ""
	}
	r := &rule.Report{}
	judged := 0
	for _, is := range subject.NICsForPods(f, r) {
		if is {
			judged++
		}
	}
	rdma := slices.ContainsFunc(f.ListNICs(), (*fact.NIC).IsRDMA)
	switch what := plural(judged, "NIC"); {
	case judged == 0 && !rdma:
		return noteNoRDMA
	case judged == 0:
		return fmt.Sprintf(noteNoRails, "no NICs: all with RDMA are uplinks of the host")
	case len(subject.NamedNICs(f, r)) > 0:
		return fmt.Sprintf(noteNoRails, what+" that networks or device pools name, or pods hold")
	default:
		return fmt.Sprintf(noteNoRails, what+" with RDMA that are not uplinks")
	}
}

// NotJudged returns sentences about the parts of networks that no rule can judge. These parts are
// the plugins of other projects, which rail-cni does not know.
func NotJudged(f *fact.Facts) []string {
	r := &rule.Report{}
	plugins, ipams := map[string]int{}, map[string]int{}
	subject.EachNetwork(f, r, func(n *network.Network) {
		for i := range n.Plugins {
			p := &n.Plugins[i]
			if p.Kind == "" {
				plugins[p.Type]++
			}
			if t := p.IPAMType(); t != "" && !strings.HasSuffix(t, network.Whereabouts) {
				ipams[t]++
			}
		}
	})
	var all []string
	for _, version := range []struct {
		what  string
		count map[string]int
	}{{"plugin", plugins}, {"IPAM plugin", ipams}} {
		total, names := 0, []string{}
		for _, name := range slices.Sorted(maps.Keys(version.count)) {
			total += version.count[name]
			names = append(names, rule.Clean(name))
		}
		if more := len(names) - rule.MaxShown; more > 0 {
			names = append(names[:rule.MaxShown], fmt.Sprintf("%d more types", more))
		}
		if total > 0 {
			all = append(all, fmt.Sprintf("not checked: %s of others (%s)", plural(total, version.what), strings.Join(names, ", ")))
		}
	}
	return all
}
