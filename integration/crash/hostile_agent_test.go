package crash

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rail-cni/rail-cni/pkg/agent/local"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	judge "github.com/rail-cni/rail-cni/pkg/doctor/keeper"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

// The bounds of an agent under attack: it is killed at 256 MiB in a cluster, and has some
// dozen files otherwise.
const (
	maxMemory = 128 << 10 // KiB
	maxFiles  = 256
)

// resident is an innocent pod that lives as long as the attack. It has a NIC, and a macvlan
// beside those of attackers.
type resident struct {
	has  []*attachment
	view string // of its facts: the first, which are from before the attack if the machine is not busy
}

// settleIn starts the resident, and has an agent look at it before the attack.
func (l *lab) settleIn() {
	l.free = slices.DeleteFunc(l.free, func(nic int) bool { return nic == heldNIC || nic == spareNIC })
	pod := l.newPod()
	for i, nic := range []int{heldNIC, modelNICs - 1} {
		a := l.newAttachment("resident", fmt.Sprint("net", i+1), nic)
		a.pod = pod
		l.admit(a)
		if err := l.add(a); err != nil {
			l.t.Fatal(err)
		}
		l.resident.has = append(l.resident.has, a)
	}
	life := l.startLife()
	for range 3 {
		if l.checkFacts(); l.resident.view != "" {
			break
		}
	}
	life.look()
	l.endLife(life, syscall.SIGTERM)
	l.mu.Lock()
	l.done = map[string]int{}
	l.mu.Unlock()
}

// moveOut ends the resident.
func (l *lab) moveOut() {
	for _, a := range l.resident.has {
		if err := l.del(a, a.path()); err != nil {
			l.violation(nil, "DEL of %s: %v", a, err)
		}
		l.returned(a, nil)
	}
	l.resident.has[0].pod.Kill()
}

// life is an agent from its start to its end.
type life struct {
	*keeper
	l    *lab
	runs map[string]bool // of its doctor, by their ends
}

// startLife starts an agent, and waits until it is ready and serves the kubelet and the
// runtime.
func (l *lab) startLife() *life {
	k := startKeeper(l.t, l.state, l.agentArgs()...)
	k.long = l.long(settleTime)
	l.count("agents", 1)
	a := &life{keeper: k, l: l, runs: map[string]bool{}}
	for deadline := time.Now().Add(l.long(patience)); ; time.Sleep(100 * time.Millisecond) {
		err := a.ready()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			l.violation(nil, "rail-agent is not ready %v after its start: %v", l.long(patience), err)
			break
		}
	}
	l.serving.Store(int64(k.cmd.Process.Pid))
	return a
}

// ready returns an error unless the agent is ready, and its parts serve.
func (a *life) ready() error {
	if _, err := a.l.query("/readyz"); err != nil {
		return err
	}
	metrics, err := a.l.query("/metrics")
	for _, line := range []string{"rail_cni_nri_connected 1", `rail_cni_resource_registered{resource="` + offered + `"} 1`} {
		if err == nil && !strings.Contains(metrics, line+"\n") {
			err = fmt.Errorf("no %s", line)
		}
	}
	return err
}

// endLife ends an agent by a signal. It must have been alive until then, not have recovered
// from a panic, and have told of no new problem of the resident.
func (l *lab) endLife(a *life, signal syscall.Signal) {
	l.serving.Store(0)
	wrong := a.end(signal)
	if at := bytes.Index(a.log.Bytes(), []byte("panic")); at >= 0 {
		wrong += fmt.Sprintf("rail-agent panicked: %.4000s", a.log.Bytes()[at:])
	}
	for _, m := range newProblem.FindAllStringSubmatch(a.log.String(), -1) {
		if object := "pod " + podNamespace + "/" + l.resident.has[0].ContainerID; l.resident.view != "" && strings.Contains(m[0], object) && !strings.Contains(l.resident.view, m[1]+": "+object) {
			wrong += "the doctor changed its verdict of an innocent pod: " + m[0]
		}
	}
	if wrong != "" {
		l.violation(nil, "%s", wrong)
	}
}

// newProblem matches what an agent's log says of a problem that its doctor has found, with the
// ID of the rule.
var newProblem = regexp.MustCompile(`(?m)^.*msg="doctor found a problem".* message="([A-Z0-9-]+)\b.*$`)

// query returns the answer of the agent to a request.
func (l *lab) query(path string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), l.long(answerTime))
	defer cancel()
	answer, err := local.Get(ctx, l.socket(), path)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, answer.Status, text)
	}
	return string(text), err
}

// lastRun matches the metric with the end of the doctor's last run.
var lastRun = regexp.MustCompile(`(?m)^rail_doctor_last_run_timestamp_seconds (\S+)$`)

// look checks that the agent is ready and healthy, and has not grown.
func (a *life) look() {
	if err := a.ready(); err != nil {
		a.l.violation(nil, "rail-agent is not ready: %v", err)
	}
	if metrics, err := a.l.query("/metrics"); err == nil {
		if m := lastRun.FindStringSubmatch(metrics); m != nil && !a.runs[m[1]] {
			a.runs[m[1]] = true
			a.l.count("runs of the doctor", 1)
		}
	}
	proc := fmt.Sprintf("/proc/%d/", a.cmd.Process.Pid)
	files, err := os.ReadDir(proc + "fd")
	if err != nil {
		a.l.violation(nil, "the files of rail-agent: %v", err)
	}
	status, err := os.ReadFile(proc + "status")
	m := peak.FindSubmatch(status)
	if err != nil || m == nil {
		a.l.violation(nil, "the memory of rail-agent: %v: %s", err, status)
		return
	}
	memory, _ := strconv.Atoi(string(m[1])) // digits
	if memory > maxMemory || len(files) > maxFiles {
		a.l.violation(nil, "rail-agent has had %d KiB of memory, and has %d files open", memory, len(files))
	}
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	a.l.memory, a.l.files = max(a.l.memory, memory), max(a.l.files, len(files))
}

// peak matches the largest resident memory of a process, in its status.
var peak = regexp.MustCompile(`(?m)^VmHWM:\s*(\d+) kB$`)

// readFacts returns what the agent knows of the resident. An error is a fact that is missing.
func (l *lab) readFacts() (view string, err error) {
	text, err := l.query("/facts")
	if err != nil {
		return "", err
	}
	facts, err := fact.Decode(strings.NewReader(text))
	if err != nil {
		return "", err
	}
	if !facts.Ledger.Attachments.OK() || !facts.NICs.List.OK() {
		return "", fmt.Errorf("records: %s; NICs: %s", facts.Ledger.Attachments.Error, facts.NICs.List.Error)
	}
	objects := []string{"NIC " + l.name(heldNIC), "NIC " + l.name(spareNIC)}
	var lines []string
	for i := range facts.Pods {
		p := &facts.Pods[i]
		if p.Name != l.resident.has[0].ContainerID {
			continue
		}
		if err := p.Interfaces.Error + p.Devices.Error; err != "" {
			return "", errors.New(err)
		}
		about, _ := json.Marshal([]any{p.Interfaces.Value, p.Devices.Value}) // plain values
		lines, objects = append(lines, p.Object()+": "+string(about)), append(objects, p.Object())
	}
	if len(lines) == 0 {
		return "", errors.New("the pod is missing")
	}
	for _, n := range facts.NICs.List.Value {
		if n.Name == l.name(heldNIC) || n.PCI != "" && n.PCI == l.pci[spareNIC] {
			if !n.AdminUp.OK() {
				return "", fmt.Errorf("whether %s is up: %s", n.Name, n.AdminUp.Error)
			}
			lines = append(lines, fmt.Sprintf("NIC %s: holder %q, up %v", n.Name, n.Holder, n.AdminUp.Value))
		}
	}
	for _, result := range rule.Judge(judge.Rules(), facts) {
		for _, f := range result.Findings {
			if slices.Contains(objects, f.Object) {
				lines = append(lines, result.ID+": "+f.Object+" "+f.Part)
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), nil
}

// checkFacts compares the facts of the resident with the first ones. Some may be missing,
// because a hostile pod, or another program of a busy machine, has used up the time or the
// memory for them; none may be wrong, and no verdict may be another.
func (l *lab) checkFacts() {
	view, err := l.readFacts()
	if err != nil {
		l.count("readings of facts that lacked some", 1)
		l.note("facts: %v", err)
		l.mu.Lock()
		l.lacked = err
		l.mu.Unlock()
		return
	}
	l.count("readings of facts", 1)
	if l.resident.view == "" {
		l.resident.view = view
	}
	if view != l.resident.view {
		l.violation(nil, "of the innocent pod and its NIC the facts or the doctor's verdicts were\n%s\nand are\n%s", l.resident.view, view)
	}
}

// restartAgents runs a rail-agent on the node for most of the time. A third of them end
// whether or not their doctor has run.
func (l *lab) restartAgents(going func() bool) {
	r := rand.New(rand.NewPCG(seed, 1000))
	for number := 0; going(); number++ {
		a := l.startLife()
		early, end := number%3 == 2, time.Now().Add(time.Duration(r.Int64N(int64(12*time.Second))))
		late := time.Now().Add(l.long(patience))
		for going() && time.Now().Before(end) || !early && len(a.runs) == 0 {
			a.look()
			if ok, err := l.allocate(spareNIC); len(l.pci) > 0 && !ok || err != nil {
				l.violation(nil, "%s cannot be allocated: %v, %v", l.name(spareNIC), ok, err)
			} else if ok {
				l.count("devices allocated", 1)
			}
			l.create(l.resident.has[0], true)
			if !early {
				l.checkFacts()
			}
			if !early && len(a.runs) == 0 && time.Now().After(late) {
				l.violation(nil, "the doctor has not run for %v", l.long(patience))
				break
			}
			pause(r, time.Second, going)
		}
		l.endLife(a, []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM}[r.IntN(2)])
		pause(r, 3*time.Second, going)
	}
}
