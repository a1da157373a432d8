package monitoring

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// program returns a program of Debian's package prometheus, which "make test" extracts.
func program(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(os.Getenv("RAIL_CNI_DEBIAN_PROMETHEUS"), name)
	need.NoError(t, need.Built(path, "test"))
	return path
}

// ruleFile writes the rules as Prometheus reads them. If at is true, alerts fire at once.
func ruleFile(t *testing.T, at bool) string {
	t.Helper()
	r := alertRules(t)
	for i := range r.Groups[0].Rules {
		if at {
			r.Groups[0].Rules[i].For = ""
		}
	}
	return written(t, "rules.yaml", r)
}

func written(t *testing.T, name string, content any) string {
	t.Helper()
	text, err := yaml.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestPromtoolAcceptsTheAlerts also lets an agent vanish, whose alert looks an hour back.
func TestPromtoolAcceptsTheAlerts(t *testing.T) {
	promtool, file := program(t, "promtool"), ruleFile(t, false)
	if out, err := exec.Command(promtool, "check", "rules", file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	type m = map[string]any
	firing := func(at, node string, value float64) m {
		return m{"eval_time": at, "expr": fmt.Sprintf(`sum(ALERTS{alertname="RailAgentGone",alertstate="firing",node_name=%q}) or vector(0)`, node), "exp_samples": []m{{"labels": "{}", "value": value}}}
	}
	series := func(name, values string) m { return m{"series": name, "values": values} }
	agent := func(n int, version, values string) m {
		return series(fmt.Sprintf(`rail_cni_agent_info{job="a",instance="%d",node_name="n%d",version="%s"}`, n, n, version), values)
	}
	up := func(n int, values string) m { return series(fmt.Sprintf(`up{job="a",instance="%d"}`, n), values) }
	const ends = "1x120 stale"
	tests := written(t, "test.yaml", m{
		"rule_files": []string{file}, "evaluation_interval": "1m",
		"tests": []m{{
			"interval": "1m",
			"input_series": []m{
				agent(1, "v1", ends), up(1, "1x120 0x120"), // it does not answer
				agent(2, "v1", "1x240"), up(2, "1x240"),
				// A new version is no other agent.
				agent(3, "v1", ends), agent(3, "v2", "_x121 1x120"), up(3, "1x240"),
				// The node is removed, and with it the target.
				agent(4, "v1", ends), up(4, ends), series(`kube_node_info{node="n4"}`, ends),
				// The pod is gone, and with it the target: by kube-state-metrics the node is there.
				agent(5, "v1", ends), up(5, ends), series(`kube_node_info{node="n5"}`, "1x240"),
				// Another node has the address of a removed one.
				agent(6, "v1", ends), up(6, "1x240"), series(`rail_cni_agent_info{job="a",instance="6",node_name="n7",version="v1"}`, "_x121 1x120"),
			},
			"promql_expr_test": []any{
				firing("110m", "n1", 0), firing("150m", "n1", 1), firing("150m", "n5", 1),
				m{"eval_time": "150m", "expr": `count(ALERTS{alertstate="firing"})`, "exp_samples": []m{{"labels": "{}", "value": 2}}},
			},
		}},
	})
	if out, err := exec.Command(promtool, "test", "rules", tests).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// labelValues are the values of labels that queries select.
var labelValues = map[string][]string{
	"status":         {"fail", "warn", "ok"},
	"state":          {"healthy", "unhealthy"},
	"pod_netns":      {"alive", "gone"},
	"group":          {"whereabouts.cni.cncf.io"},
	"nic":            {"ens1", "ens2"},
	"path":           {"/opt/cni/bin/macvlan", "/opt/cni/bin/rdma"},
	"resource":       {"ippools", "overlappingrangeipreservations", "ippools.whereabouts.cni.cncf.io", "overlappingrangeipreservations.whereabouts.cni.cncf.io"},
	"plugin":         {"macvlan"},
	"node_name":      {"synthetic"},
	"what":           {"files"},
	"reason":         {"Taken"},
	"code":           {"7"},
	"pod_name":       {"trainer-0"},
	"ifname":         {"net1"},
	"rdma_port":      {"1"},
	"flow_schema":    {"rail-cni-pools"},
	"priority_level": {"rail-cni-pools"},
}

// synthetic serves every metric of the reference, with all its labels. Counters grow by a
// billion a second. Gauges are 1, and the second half of a metric's lines 0.
func synthetic(t *testing.T) *httptest.Server {
	metrics, began := documented(t), time.Now()
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for name, m := range metrics {
			fmt.Fprintf(w, "# TYPE %s %s\n", name, m.kind)
			sets := []string{""}
			for _, label := range m.labels {
				var more []string
				values := labelValues[label]
				if values == nil {
					values = []string{"x"}
				}
				for _, set := range sets {
					for _, value := range values {
						more = append(more, fmt.Sprintf("%s%s=%q,", set, label, value))
					}
				}
				sets = more
			}
			grown := 1e9 * time.Since(began).Seconds()
			for i, set := range sets {
				switch m.kind {
				case "histogram":
					for _, le := range []string{"0.1", "1", "+Inf"} {
						fmt.Fprintf(w, "%s_bucket{%sle=%q} %g\n", name, set, le, grown)
					}
					fmt.Fprintf(w, "%s_sum{%s} %g\n%s_count{%s} %g\n", name, set, grown, name, set, grown)
				case "counter":
					fmt.Fprintf(w, "%s{%s} %g\n", name, set, grown)
				default:
					value := 1
					if 2*i >= len(sets) && i > 0 {
						value = 0
					}
					fmt.Fprintf(w, "%s{%s} %d\n", name, set, value)
				}
			}
		}
	}))
}

// prometheus is a real one. It scrapes a real agent, and what synthetic serves.
type prometheus struct {
	t       *testing.T
	address string
}

// freePort returns an address of the loopback interface that nobody has now.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// begin starts a program, which ends with the test.
func begin(t *testing.T, path string, args ...string) {
	t.Helper()
	cmd := exec.Command(path, args...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("%s: %v\n%s", filepath.Base(path), err, log.Bytes())
		}
	})
}

func newPrometheus(t *testing.T) *prometheus {
	t.Helper()
	need.Root(t)
	path, bin := program(t, "prometheus"), testnet.Bin(t)
	p := &prometheus{t, freePort(t)}
	agent := freePort(t)
	begin(t, filepath.Join(bin, "rail-agent"), "run", "--state-dir", filepath.Join(scratch.Dir(t), "state"), "--metrics", agent, "--node", "real", "--nri-socket", "off")
	fake := synthetic(t)
	t.Cleanup(fake.Close)
	type m = map[string]any
	target := func(job, address string) m {
		return m{"job_name": job, "static_configs": []m{{"targets": []string{address}}}}
	}
	config := written(t, "prometheus.yaml", m{
		"global":         m{"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
		"rule_files":     []string{ruleFile(t, true)},
		"scrape_configs": []m{target("agent", agent), target("synthetic", strings.TrimPrefix(fake.URL, "http://"))},
	})
	begin(t, path, "--config.file="+config, "--storage.tsdb.path="+t.TempDir(), "--web.listen-address="+p.address, "--log.level=warn")
	return p
}

// get returns the data of an answer of the API.
func (p *prometheus) get(path string, parameters url.Values) (json.RawMessage, error) {
	request, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, "http://"+p.address+path+"?"+parameters.Encode(), nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	var told struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.Unmarshal(body, &told); err != nil {
		return nil, fmt.Errorf("%s: %.200s", answer.Status, body)
	}
	if told.Status != "success" {
		return nil, errors.New(told.Error)
	}
	return told.Data, nil
}

// ask returns the number of series of a query's answer.
func (p *prometheus) ask(expr string) (int, error) {
	data, err := p.get("/api/v1/query", url.Values{"query": {expr}})
	if err != nil {
		return 0, err
	}
	var told struct{ Result []json.RawMessage }
	err = json.Unmarshal(data, &told)
	return len(told.Result), err
}

// patience bounds how long a test waits for Prometheus on a busy machine.
const patience = time.Minute

// answered waits until the query has an answer with a series.
func (p *prometheus) answered(expr string) error {
	for began := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		n, err := p.ask(expr)
		if n > 0 || time.Since(began) > patience {
			if err == nil && n == 0 {
				err = errors.New("no series")
			}
			return err
		}
	}
}

// variables are the values of Grafana's variables.
var variables = strings.NewReplacer("$__rate_interval", "20s", "$__range", "20s", "$node", ".*", "$namespace", ".*", "$pod", ".*")

// TestPrometheusAnswersEveryQuery asks the queries of all dashboards.
func TestPrometheusAnswersEveryQuery(t *testing.T) {
	p := newPrometheus(t)
	for _, wait := range []string{`rail_cni_agent_info{job="agent",node_name="real"}`, `rate(process_cpu_seconds_total{job="synthetic"}[20s])`, `rate(process_cpu_seconds_total{job="agent"}[20s])`} {
		if err := p.answered(wait); err != nil {
			t.Fatalf("%s: %v", wait, err)
		}
	}
	panels, variable := queries(t)
	for _, q := range panels {
		if err := p.answered(variables.Replace(q.expr)); err != nil {
			t.Errorf("%s: %s: %v", q.where, q.expr, err)
		}
	}
	for _, q := range variable {
		i := strings.LastIndex(q.expr, ", ")
		if i < 0 {
			t.Errorf("%s: %s", q.where, q.expr)
			continue
		}
		selector, label := strings.TrimPrefix(q.expr[:i], "label_values("), strings.TrimSuffix(q.expr[i+2:], ")")
		if err := p.answered(fmt.Sprintf(`count by (%s) (%s) unless count(vector(1))`, label, variables.Replace(selector))); err != nil {
			t.Errorf("%s: %s: %v", q.where, q.expr, err)
		}
	}
	// What a query of a real agent has: its node.
	for _, expr := range []string{`process_resident_memory_bytes * on (job, instance) group_left (node_name) rail_cni_agent_info{node_name=~"real"}`, `rail_cni_nics_missing{job="agent"}`} {
		if n, err := p.ask(expr); n != 1 || err != nil {
			t.Errorf("%s: %d series, %v", expr, n, err)
		}
	}
}

// TestEachAlertFiresWithAReadableText: the synthetic node has all troubles at once. The real
// agent has none.
func TestEachAlertFiresWithAReadableText(t *testing.T) {
	p := newPrometheus(t)
	var missing []string
	for _, r := range alertRules(t).Groups[0].Rules {
		if r.Alert == "RailAgentGone" { // promtool lets it fire
			continue
		}
		if err := p.answered(fmt.Sprintf(`ALERTS{alertname=%q,alertstate="firing"}`, r.Alert)); err != nil {
			missing = append(missing, r.Alert)
		}
	}
	if len(missing) > 0 {
		t.Errorf("these do not fire: %v", missing)
	}
	data, err := p.get("/api/v1/alerts", nil)
	if err != nil {
		t.Fatal(err)
	}
	var told struct {
		Alerts []struct{ Labels, Annotations map[string]string }
	}
	if err := json.Unmarshal(data, &told); err != nil {
		t.Fatal(err)
	}
	for _, a := range told.Alerts {
		name := a.Labels["alertname"]
		if a.Labels["job"] == "agent" && !strings.HasPrefix(name, "RailDoctor") {
			t.Errorf("%s fires for an agent without a trouble: %v", name, a.Labels)
		}
		if !slices.Contains([]string{"warning", "critical"}, a.Labels["severity"]) || a.Labels["node_name"]+a.Labels["pool"] == "" {
			t.Errorf("%s: the labels are %v", name, a.Labels)
		}
		for what, text := range a.Annotations {
			if text == "" || strings.Contains(text, "<") || strings.Contains(text, "  ") || strings.Contains(text, " of  ") {
				t.Errorf("%s: %s is %q", name, what, text)
			}
		}
		if len(a.Annotations) != 3 {
			t.Errorf("%s: the annotations are %v", name, a.Annotations)
		}
	}
}
