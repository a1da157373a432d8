package whereabouts

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/need"
)

var update = flag.Bool("update", false, "write docs/reference/conformance-whereabouts.md")

const document = "../../docs/reference/conformance-whereabouts.md"

// scenario is one behavior of one key: the same calls of both plugins, each in
// a namespace of its own.
type scenario struct {
	key, what string
	ipam      string // of the steps without their own
	steps     []step

	existing []existing        // objects that exist before
	files    map[string]string // of the node, by name
	noFile   bool              // no flat file either
	node     string            // NODENAME
	says     string            // what both errors contain: users' alerts match it
	because  string            // why ours diverges; "" = it does not
}

type existing struct{ plural, text string }

// step is one call. Its zero values are the scenario's or the usual ones.
type step struct {
	verb                            string
	pod                             int
	ifname, id, args, version, ipam string
	keys                            string // beside the ipam object
	raw                             string // stdin as a whole
}

func add(pod int) step { return step{verb: "ADD", pod: pod, ifname: "net1", version: "1.0.0"} }
func del(pod int) step { s := add(pod); s.verb = "DEL"; return s }

func (s step) as(verb string) step      { s.verb = verb; return s }
func (s step) on(ifname string) step    { s.ifname = ifname; return s }
func (s step) container(id string) step { s.id = id; return s }
func (s step) with(args string) step    { s.args = args; return s }
func (s step) at(version string) step   { s.version = version; return s }
func (s step) conf(ipam string) step    { s.ipam = ipam; return s }
func (s step) beside(keys string) step  { s.keys = keys; return s }
func (s step) stdin(text string) step   { s.raw = text; return s }

func (s step) call(t *testing.T, sc *scenario, n *node, binary string) call {
	t.Helper()
	id, args := identity(s.pod)
	c := call{node: sc.node, binary: binary, verb: s.verb, ifname: s.ifname, id: id, args: args, stdin: s.raw}
	if s.id != "" {
		c.id = s.id
	}
	switch {
	case strings.HasPrefix(s.args, "+"):
		c.args += ";" + s.args[1:]
	case s.args != "":
		c.args = s.args
	}
	if c.stdin == "" {
		ipam := s.ipam
		if ipam == "" {
			ipam = sc.ipam
		}
		c.stdin = n.config(t, s.version, ipam, s.keys)
	}
	return c
}

// outcome is the outcome of a step.
type outcome struct {
	exit   int
	result string // canonical JSON
	text   string // of the error
	short  string // the short form
	state  string // of the namespace afterwards, canonical JSON
}

// play runs the scenario with one of the plugins.
func (sc *scenario) play(t *testing.T, binary string) []outcome {
	t.Helper()
	namespace := newNamespace(t)
	n := newNode(t, namespace)
	for name, text := range sc.files {
		n.write(t, name, strings.ReplaceAll(text, here, n.dir))
	}
	if sc.noFile {
		if err := os.Remove(filepath.Join(n.dir, "flat")); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range sc.existing {
		mustCreate(t, group+namespace+"/"+o.plural, json.RawMessage(o.text))
	}
	var all []outcome
	for _, s := range sc.steps {
		out, err := s.call(t, sc, n, binary).run()
		o := outcome{exit: exitCode(err), result: canonical(t, out), state: state(t, namespace)}
		if err != nil {
			o.text = strings.NewReplacer(n.dir, here, namespace, "NAMESPACE", plane.Server(), "SERVER").Replace(err.Error())
		}
		o.short = s.describe(t, out, o)
		all = append(all, o)
	}
	return all
}

func canonical(t *testing.T, text string) string {
	t.Helper()
	if strings.TrimSpace(text) == "" {
		return ""
	}
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// state returns all objects of the namespace, without the container ID in
// reservations, which real whereabouts leaves out.
func state(t *testing.T, namespace string) string {
	t.Helper()
	all := map[string]object{}
	for _, plural := range []string{pools, reservations, slicePools} {
		found, err := list(t.Context(), namespace, plural)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range found {
			if plural == reservations {
				delete(o.Spec, "containerid")
			}
			o.Metadata.ResourceVersion = ""
			all[plural+" "+o.Metadata.Name] = o
		}
	}
	data, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// describe returns a short description of the step's outcome.
func (s step) describe(t *testing.T, out string, o outcome) string {
	verb := s.verb
	if s.ifname != "net1" {
		verb += " " + s.ifname
	}
	if o.exit != 0 {
		text := o.text
		if strings.Contains(text, "panic:") {
			t.Fatal("a scenario ends one of the programs by a panic: leave it out, and test our answer in our own packages")
		}
		text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
		if strings.Contains(text, "context deadline") { // there are several wordings
			text = "context deadline exceeded"
		}
		return verb + ": error “" + text + "”"
	}
	var r struct {
		IPs      []struct{ Address, Gateway string }
		IP4, IP6 *struct{ IP, Gateway string }
	}
	if s.verb != "ADD" {
		return verb + ": ok"
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	var got []string
	one := func(address, gateway string) {
		if gateway != "" {
			address += " via " + gateway
		}
		got = append(got, address)
	}
	for _, ip := range r.IPs {
		one(ip.Address, ip.Gateway)
	}
	if r.IP4 != nil {
		one(r.IP4.IP, r.IP4.Gateway)
	}
	if r.IP6 != nil {
		one(r.IP6.IP, r.IP6.Gateway)
	}
	if got == nil {
		got = []string{"no address"}
	}
	return verb + ": " + strings.Join(got, ", ")
}

// differs returns the first difference of a step's outcomes, "" = none.
func differs(ours, theirs outcome) string {
	switch {
	case ours.exit != theirs.exit:
		return fmt.Sprintf("exit code: ours %d (%s), theirs %d (%s)", ours.exit, ours.text, theirs.exit, theirs.text)
	case ours.result != theirs.result:
		return fmt.Sprintf("result:\nours   %s\ntheirs %s", ours.result, theirs.result)
	case ours.state != theirs.state:
		return fmt.Sprintf("objects:\nours   %s\ntheirs %s", ours.state, theirs.state)
	}
	return ""
}

func TestConformance(t *testing.T) {
	rows := make([]string, len(scenarios)) // "" for those that are not in the sample
	all := make([]int, len(scenarios))
	seen := map[string]bool{}
	for i := range scenarios {
		all[i] = i
		name := scenarios[i].name()
		if seen[name] {
			t.Fatalf("two scenarios are called %q", name)
		}
		seen[name] = true
	}
	some := all
	if !*update {
		some = need.Sample(t, 30, all)
	}
	t.Run("scenarios", func(t *testing.T) {
		for _, i := range some {
			sc := &scenarios[i]
			t.Run(sc.name(), func(t *testing.T) {
				t.Parallel()
				ours, theirs := sc.play(t, ours(t)), sc.play(t, theirs(t))
				var differences []string
				for i := range ours {
					if d := differs(ours[i], theirs[i]); d != "" {
						differences = append(differences, fmt.Sprintf("step %d: %s", i+1, d))
					}
				}
				said := func(o outcome) bool { return strings.Contains(o.text, sc.says) }
				if sc.says != "" && !(slices.ContainsFunc(ours, said) && slices.ContainsFunc(theirs, said)) {
					t.Errorf("not both errors contain %q:\nours   %v\ntheirs %v", sc.says, ours, theirs)
				}
				switch {
				case sc.because == "" && differences != nil:
					t.Error(strings.Join(differences, "\n"))
				case sc.because != "" && differences == nil:
					t.Errorf("named as a divergence, and both are equal: %v", ours)
				}
				rows[i] = sc.row(ours, theirs)
			})
		}
	})
	if t.Failed() {
		return
	}
	want := table(rows)
	if *update {
		if err := os.WriteFile(document, want, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	stale := len(some) == len(all) && !bytes.Equal(got, want) || bytes.Count(got, []byte("\n| `")) != len(all)
	for _, i := range some {
		stale = stale || !bytes.Contains(got, []byte("\n"+rows[i]))
	}
	if stale {
		t.Errorf("%s is stale: run `go test ./integration/whereabouts -run Conformance -update`, and look at what changed", document)
	}
}

// name returns the name of the scenario's test.
func (sc *scenario) name() string { return sc.key + ": " + sc.what }

// row returns the scenario's line of its table.
func (sc *scenario) row(ours, theirs []outcome) string {
	cells := []string{"`" + sc.key + "`", sc.what}
	if sc.because == "" {
		cells = append(cells, sc.agreed(ours))
	} else {
		last := len(ours) - 1
		if ours[last].state != theirs[last].state {
			ours[last].short += "; left: " + left(ours[last].state)
			theirs[last].short += "; left: " + left(theirs[last].state)
		}
		cells = append(cells, join(theirs), join(ours), sc.because)
	}
	for i := range cells {
		cells[i] = strings.ReplaceAll(cells[i], "|", `\|`)
	}
	return "| " + strings.Join(cells, " | ") + " |\n"
}

// agreed describes the common outcomes. The texts of errors may differ.
func (sc *scenario) agreed(all []outcome) string {
	for i := range all {
		if verb, _, failed := strings.Cut(all[i].short, ": error “"); failed {
			all[i].short = verb + ": error"
			if sc.says != "" {
				all[i].short += ", “" + sc.says + "”"
			}
		}
	}
	return join(all)
}

// join joins the steps in one cell.
func join(all []outcome) string {
	var b strings.Builder
	for i := 0; i < len(all); {
		same := i
		for same < len(all) && all[same].short == all[i].short {
			same++
		}
		if i > 0 {
			b.WriteString("<br>")
		}
		b.WriteString(all[i].short)
		if n := same - i; n > 1 {
			fmt.Fprintf(&b, " (%d times)", n)
		}
		i = same
	}
	return b.String()
}

// left returns the keys of pools and the reservations of a state.
func left(state string) string {
	all := map[string]object{}
	if err := json.Unmarshal([]byte(state), &all); err != nil {
		return err.Error()
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		allocations, _ := all[name].Spec["allocations"].(map[string]any)
		switch kind, name, _ := strings.Cut(name, " "); kind {
		case pools:
			keys := strings.Join(slices.Sorted(maps.Keys(allocations)), " ")
			parts = append(parts, "IPPool "+name+" {"+keys+"}")
		case reservations:
			parts = append(parts, "reservation "+name)
		}
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

func table(rows []string) []byte {
	var equal, diverge strings.Builder
	equals := 0
	for i, row := range rows {
		if scenarios[i].because == "" {
			equals++
			equal.WriteString(row)
		} else {
			diverge.WriteString(row)
		}
	}
	return fmt.Appendf(nil, heading, len(rows), equals, len(rows)-equals, diverge.String(), equal.String())
}

const heading = `# Our whereabouts compared with whereabouts v0.9.4

A test writes this page (` + "`integration/whereabouts`" + `, part of ` + "`make test`" + `). The test runs both programs on one API server, with the
same stdin and CNI_ARGS, each program in its own namespace. After each call it compares the exit code, the result, and every
IPPool, OverlappingRangeIPReservation and NodeSlicePool. Do not edit this page: change the scenarios, and run the test with
` + "`-update`" + `.

%d scenarios: %d equal, %d divergences, each with its reason. Three differences exist in every scenario and are not compared.
Reservations of rail-cni name their container (` + "`containerid`" + `, which the CRD of v0.7 requires). Errors of rail-cni have a code, a
cause and a cure; they keep the texts that alerts look for. v0.9.4 takes a Lease for each call.

No scenario makes a program panic. v0.9.4 did panic with some states of node slices and some settings of its leader election.
In these cases rail-cni's plugin returns an error or an address, which separate tests check.

## Divergences

| key | behavior | v0.9.4 | rail-cni | why |
|---|---|---|---|---|
%s
## Equal

| key | behavior | both |
|---|---|---|
%s`
