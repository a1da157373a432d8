package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
)

// judge returns the findings of the cluster, or of a node.
type judge func(ctx context.Context) (findings, []string, error)

// judges are those of the cluster and of its nodes.
func (l *lab) judges() map[string]judge {
	all := map[string]judge{"cluster": l.judgeCluster}
	for i, n := range l.Nodes() {
		all[n.Name] = func(ctx context.Context) (findings, []string, error) { return l.judgeNode(ctx, i) }
	}
	return all
}

// judgedByAll calls each with what the cluster's and each node's doctor finds, which run at the
// same time.
func (l *lab) judgedByAll(t *testing.T, each func(name string, found findings, missing []string)) {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	for name, judge := range l.judges() {
		all.Go(func() {
			found, missing, err := judge(t.Context())
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			each(name, found, missing)
		})
	}
	all.Wait()
}

func TestHealthyClusterHasNoFindings(t *testing.T) {
	l := theLab(t)
	l.healthy(t) // its pods have just started
	rounds := need.Either(2, 50)
	bad, late, unknown := 0, 0, map[string]bool{}
	count := func(name string, found findings, missing []string) {
		for _, m := range missing {
			if !excused(name, m) {
				unknown[name+": "+m] = true
			}
		}
		// The bound of an agent's answer is too short on a machine that is very busy.
		if slow := found["CLUSTER-SILENT"]; len(slow) > 0 && !slices.ContainsFunc(slow, func(s string) bool { return !strings.Contains(s, "no answer within") }) {
			t.Logf("%s: %s", name, slow)
			delete(found, "CLUSTER-SILENT")
			late++
		}
		if len(found) > 0 {
			bad++
			t.Errorf("%s: %s", name, found)
		}
	}
	for range rounds {
		l.judgedByAll(t, count)
	}
	for m := range unknown {
		t.Errorf("a fact is missing: %s", m)
	}

	// Pods come and go meanwhile.
	ended := l.guests(t)
	for range rounds {
		l.judgedByAll(t, func(name string, found findings, _ []string) { count(name, found, nil) })
	}
	t.Logf("%d runs, %d with findings, %d in which an agent answered too late; %d pods came and went", 2*rounds*len(l.judges()), bad, late, ended())
	// Of the cluster's runs in make test, which shares the machine, one must be in time.
	if late == 2*rounds || need.Full() && late > rounds/10 {
		t.Errorf("agents answered too late in %d runs", late)
	}
}

// excused reports whether a fact may be missing: on a machine that is busy some sources do not
// answer in time, and a node of this cluster, which is not the machine, has no list of the
// kernel's modules.
func excused(judge, missing string) bool {
	return strings.Contains(missing, "deadline exceeded") || strings.Contains(missing, "has not answered since") || judge != "cluster" && strings.Contains(missing, "the modules that the kernel has built in are not known")
}

// guests makes and ends pods on both nodes, until the function is called that it returns. That
// one returns how many there were.
func (l *lab) guests(t *testing.T) (end func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	counts := make([]int, len(l.Nodes()))
	errs := make([]error, len(l.Nodes()))
	for i := range l.Nodes() {
		all.Go(func() {
			name := fmt.Sprintf("guest-%d", i+1)
			for ctx.Err() == nil && errs[i] == nil {
				errs[i] = errors.Join(l.run(context.Background(), pod{name: name, node: i, networks: guestNetworks}), l.end(context.Background(), name))
				counts[i]++
			}
		})
	}
	return func() (count int) {
		cancel()
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
		for _, n := range counts {
			count += n
		}
		return count
	}
}

// metrics returns the metrics of the agent of a node.
func (l *lab) metrics(ctx context.Context, node int) (string, error) {
	socket := l.Node(node).Path("/run/rail-cni/agent.sock")
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/metrics", nil)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}

// events returns the messages of the Events about a node with this reason, since then.
func (l *lab) events(ctx context.Context, node int, reason string, since time.Time) (string, error) {
	text, err := l.Kubectl(ctx, "get", "events", "-A", "-o", "json", "--field-selector", "involvedObject.kind=Node,involvedObject.name="+l.Node(node).Name+",reason="+reason)
	if err != nil {
		return "", err
	}
	var list struct {
		Items []struct {
			Message       string
			LastTimestamp time.Time
		}
	}
	var found strings.Builder
	err = json.Unmarshal([]byte(text), &list)
	for _, e := range list.Items {
		if !e.LastTimestamp.Before(since) {
			fmt.Fprintln(&found, e.Message)
		}
	}
	return found.String(), err
}

func TestAgentTellsOfADefectAndOfItsEnd(t *testing.T) {
	l := theLab(t)
	for name, id := range need.SampleMap(t, 1, map[string]string{"logins may lock little memory": "HOST-LIMITSCONF", "a pod sets its rail down": "POD-DOWN"}) {
		i := slices.IndexFunc(defects, func(d defect) bool { return d.name == name })
		if i < 0 {
			t.Fatalf("there is no defect %q", name)
		}
		d := &defects[i]
		t.Run(d.name, func(t *testing.T) {
			await := func(what string, done func() error) {
				t.Helper()
				for deadline := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
					err := done()
					if err == nil {
						return
					}
					if time.Now().After(deadline) {
						t.Fatalf("%s: %v", what, err)
					}
				}
			}
			has := func(read func() (string, error), part string) func() error {
				return func() error {
					text, err := read()
					if err == nil && !strings.Contains(text, part) {
						err = fmt.Errorf("%q is not in %.2000s", part, text)
					}
					return err
				}
			}
			metric := func() (string, error) { return l.metrics(t.Context(), 0) }
			status := "warn"
			if id == "POD-DOWN" {
				status = "fail"
			}
			ok := fmt.Sprintf("rail_doctor_rule{id=%q,status=\"ok\"} 1", id)
			await("healthy", has(metric, ok))

			began := time.Now().Truncate(time.Second).Add(time.Second) // Events have seconds
			time.Sleep(time.Until(began))
			event := func(reason string) func() (string, error) {
				return func() (string, error) { return l.events(t.Context(), 0, reason, began) }
			}
			p := &planter{lab: l, t: t}
			t.Cleanup(p.undoAll)
			d.plant(p)
			await("metric", has(metric, fmt.Sprintf("rail_doctor_rule{id=%q,status=%q} 1", id, status)))
			await("Event", has(event("RailProblem"), id+": "))
			p.undoAll()
			await("metric after the end", has(metric, ok))
			await("Event of the end", has(event("RailProblemSolved"), id+": solved"))
		})
	}
}
