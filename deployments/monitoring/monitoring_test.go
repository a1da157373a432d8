package monitoring

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/docs"
)

const metricsPage = "docs/reference/metrics.md"

// dashboard is the part of a Grafana dashboard that the tests read.
type dashboard struct {
	UID        string
	Title      string
	Templating struct {
		List []struct {
			Name  string
			Type  string
			Query json.RawMessage
		}
	}
	Panels []struct {
		ID      int
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ RefID, Expr string }
	}
}

// query is a query of a file.
type query struct{ where, expr string }

func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	files, err := filepath.Glob("*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("there is no dashboard: %v", err)
	}
	all := map[string]dashboard{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[file] = d
	}
	return all
}

// queries returns the queries of the dashboards: those of panels, and those that fill
// variables.
func queries(t *testing.T) (panels, variables []query) {
	t.Helper()
	for file, d := range dashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				panels = append(panels, query{file + ", " + p.Title, target.Expr})
			}
		}
		for _, v := range d.Templating.List {
			var q struct{ Query string }
			if v.Type == "query" && json.Unmarshal(v.Query, &q) == nil {
				variables = append(variables, query{file + ", variable " + v.Name, q.Query})
			}
		}
	}
	return panels, variables
}

// alert is an alert rule.
type alert struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for,omitempty"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// rules is a file of rules, as Prometheus reads it.
type rules struct {
	Groups []struct {
		Name  string  `yaml:"name"`
		Rules []alert `yaml:"rules"`
	} `yaml:"groups"`
}

// alertRules returns the spec of the PrometheusRule.
func alertRules(t *testing.T) rules {
	t.Helper()
	text, err := os.ReadFile("alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var object struct{ Spec rules }
	if err := yaml.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	if len(object.Spec.Groups) != 1 || len(object.Spec.Groups[0].Rules) == 0 {
		t.Fatalf("there are no alerts: %+v", object.Spec)
	}
	return object.Spec
}

// metric is a metric of the reference.
type metric struct {
	kind   string // "gauge", "counter" or "histogram"
	labels []string
}

// documented returns the metrics of the reference.
func documented(t *testing.T) map[string]metric {
	t.Helper()
	all := map[string]metric{}
	for _, section := range []string{"The agent", "The API server"} {
		for _, row := range docs.Rows(docs.Section(t, metricsPage, section)) {
			all[strings.Trim(row[0], "`")] = metric{row[1], docs.Code(row[2])}
		}
	}
	var labels []string
	for _, row := range docs.Rows(docs.Section(t, metricsPage, "RDMA counters")) {
		labels = append(labels, docs.Code(row[0])...)
	}
	for _, row := range docs.Rows(docs.Section(t, metricsPage, "Counters of mlx5")) {
		m := metric{"counter", slices.DeleteFunc(slices.Clone(labels), func(l string) bool { return l == "priority" && !slices.Contains(docs.Code(row[1]), l) })}
		if name := strings.Trim(row[0], "`"); strings.Contains(name, "speed") {
			all[name] = metric{"gauge", m.labels}
		} else {
			all[name] = m
		}
	}
	return all
}

var (
	notMetrics = regexp.MustCompile(`"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\b(?:by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)|\blabel_values\(|,\s*\w+\)$`)
	word       = regexp.MustCompile(`\b[a-zA-Z_]\w*\b(\s*\()?`)
	keywords   = []string{"or", "and", "unless", "offset", "bool"}
)

// metricsOf returns the names of the metrics of a query.
func metricsOf(expr string) (names []string) {
	for _, m := range word.FindAllStringSubmatch(notMetrics.ReplaceAllString(expr, " "), -1) {
		if m[1] == "" && !slices.Contains(keywords, m[0]) {
			names = append(names, m[0])
		}
	}
	return names
}

func TestMetricsAreFoundInQueries(t *testing.T) {
	for expr, want := range map[string][]string{
		`sum by (le) (rate(a_bucket{x=~"b|c"}[5m]) * on (job) group_left (n) d_info{e="f"}) > 1e6`: {"a_bucket", "d_info"},
		`(a offset 1h) unless on (n) b or c{} == bool 1`:                                           {"a", "b", "c"},
		`label_values(a{b=~"$c"}, d)`:                                                              {"a"},
	} {
		if have := metricsOf(expr); !slices.Equal(have, want) {
			t.Errorf("%s: %v, want %v", expr, have, want)
		}
	}
}

// foreign are metrics of Prometheus itself and of kube-state-metrics.
var foreign = []string{"up", "kube_node_info"}

// TestQueriesUseMetricsOfTheReference needs no Prometheus.
func TestQueriesUseMetricsOfTheReference(t *testing.T) {
	known := documented(t)
	panels, variables := queries(t)
	all := append(panels, variables...)
	for _, r := range alertRules(t).Groups[0].Rules {
		all = append(all, query{"alerts.yaml, " + r.Alert, r.Expr})
	}
	for _, q := range all {
		names := metricsOf(q.expr)
		if len(names) == 0 {
			t.Errorf("%s has no metric: %s", q.where, q.expr)
		}
		for _, name := range names {
			family := name
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if base := strings.TrimSuffix(name, suffix); known[base].kind == "histogram" {
					family = base
				}
			}
			if _, ok := known[family]; !ok && !slices.Contains(foreign, name) {
				t.Errorf("%s uses %s, which %s has not: %s", q.where, name, metricsPage, q.expr)
			}
		}
	}
	if len(all) < 60 {
		t.Errorf("only %d queries are found", len(all))
	}
}

// TestPanelsLieSideBySide: dashboards have names of their own, and no panel covers another.
func TestPanelsLieSideBySide(t *testing.T) {
	uids := map[string]bool{}
	for file, d := range dashboards(t) {
		if uids[d.UID] || d.UID == "" {
			t.Errorf("%s: the UID is %q, which another has", file, d.UID)
		}
		uids[d.UID] = true
		ids, taken := map[int]bool{}, map[[2]int]string{}
		for _, p := range d.Panels {
			if ids[p.ID] {
				t.Errorf("%s: two panels have the ID %d", file, p.ID)
			}
			ids[p.ID] = true
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other, ok := taken[[2]int{x, y}]; ok || x >= 24 {
						t.Fatalf("%s: %q covers %q, or is too wide", file, p.Title, other)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
		}
	}
}

// TestRunbookHasEveryAlert: an alert's link leads to its own section.
func TestRunbookHasEveryAlert(t *testing.T) {
	const page = "docs/guide/runbook.md"
	_, text, _ := strings.Cut(docs.Page(t, page), "\n## By alert\n")
	var have, want []string
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "### "); ok {
			have = append(have, strings.TrimSpace(name))
		}
	}
	for _, r := range alertRules(t).Groups[0].Rules {
		want = append(want, r.Alert)
		if link, end := r.Annotations["runbook_url"], page+"#"+strings.ToLower(r.Alert); !strings.HasSuffix(link, end) {
			t.Errorf("%s has the link %q, not …%s", r.Alert, link, end)
		}
	}
	if !slices.Equal(have, want) {
		t.Errorf("%s has the alerts %v, the file %v", page, have, want)
	}
}

// TestGuideListsTheAlerts holds docs/guide/monitoring.md to the files.
func TestGuideListsTheAlerts(t *testing.T) {
	const guide = "docs/guide/monitoring.md"
	want := map[string]string{}
	for _, r := range alertRules(t).Groups[0].Rules {
		want[r.Alert] = r.Labels["severity"]
	}
	have := map[string]string{}
	for _, row := range docs.Rows(docs.Section(t, guide, "Alerts")) {
		have[strings.Trim(row[0], "`")] = row[1]
	}
	if !maps.Equal(have, want) {
		t.Errorf("%s has the alerts %v, the file %v", guide, have, want)
	}
	for file, d := range dashboards(t) {
		if !strings.Contains(docs.Page(t, guide), file) {
			t.Errorf("%s lacks %s (%s)", guide, file, d.Title)
		}
	}
}
