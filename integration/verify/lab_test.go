package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/examples"
	"github.com/rail-cni/rail-cni/integration/cluster"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/verify"
)

// top is the path of the tree's top.
const top = "../.."

// patience bounds each wait.
const patience = 3 * time.Minute

// lab is a cluster with rail-cni, and the networks of eight rails.
type lab struct {
	*cluster.Cluster
	t      *testing.T // of the test that uses it
	nodes  []*testnet.Netns
	fabric *testnet.Netns
	rails  []string // the names of the NICs, by rail
	before []string // the states of the nodes
}

var shared struct {
	sync.Once
	cluster *cluster.Cluster
	dir     string
	err     error
}

func TestMain(m *testing.M) {
	code := m.Run()
	var err error
	if shared.cluster != nil {
		err = shared.cluster.Close()
	}
	if err = errors.Join(err, scratch.Remove(shared.dir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// theLab returns the cluster, which the first test starts.
func theLab(t *testing.T) *lab {
	t.Helper()
	need.Cluster(t)
	bin := testnet.Bin(t)
	shared.Do(func() {
		if shared.dir, shared.err = scratch.MkdirTemp("verify"); shared.err == nil {
			shared.cluster, shared.err = newCluster(shared.dir, bin)
		}
	})
	need.NoError(t, shared.err)
	l := &lab{Cluster: shared.cluster, t: t, fabric: testnet.OfProcess(t, shared.cluster.Fabric())}
	networks, err := examples.Networks("roce-nads.yaml")
	l.must(err)
	for _, n := range networks {
		var config struct{ Device string }
		l.must(json.Unmarshal(n.Config, &config))
		l.rails = append(l.rails, config.Device)
	}
	for _, n := range l.Nodes() {
		netns := testnet.OfProcess(t, n.Pid())
		l.nodes, l.before = append(l.nodes, netns), append(l.before, netns.State())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(l.Report())
		}
	})
	return l
}

// newCluster starts a cluster, and installs rail-cni and the examples' networks.
func newCluster(dir, bin string) (*cluster.Cluster, error) {
	ctx := context.Background()
	archive, err := packImage(dir, bin)
	if err != nil {
		return nil, err
	}
	c, err := cluster.New(ctx, dir, cluster.Options{Multus: cluster.Thin, Hardware: true})
	if err != nil {
		return nil, err
	}
	nads, err := examples.Files.ReadFile("roce-nads.yaml")
	for _, n := range c.Nodes() {
		if err == nil {
			err = os.WriteFile(n.Path("/etc/rail-cni/node.yaml"), []byte("fabric: isolated\n"), 0o644)
		}
	}
	steps := []func() error{
		func() error { return err },
		func() error { return c.LoadImage(ctx, archive) },
		func() error { _, err := c.Kubectl(ctx, "apply", "-k", top+"/deployments/kustomize/base"); return err },
		func() error { return c.Apply(ctx, nads) },
		func() error {
			_, err := c.Kubectl(ctx, "rollout", "status", "--timeout=3m", "--namespace=kube-system", "daemonset/rail-agent")
			return err
		},
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, errors.Join(err, errors.New(c.Report()), c.Close())
		}
	}
	return c, nil
}

// packImage packs the programs as the image of the manifests.
func packImage(dir, bin string) (archive string, err error) {
	programs := filepath.Join(dir, runtime.GOARCH)
	if err := os.Mkdir(programs, 0o755); err != nil {
		return "", err
	}
	for _, name := range []string{"rail-agent", "railctl", "host-device", "macvlan", "rdma", "whereabouts"} {
		if err := os.Symlink(filepath.Join(bin, name), filepath.Join(programs, name)); err != nil {
			return "", err
		}
	}
	archive = filepath.Join(dir, "image.tar")
	cmd := exec.Command("go", "run", "./scripts/image", "-tags", "devel", "-out", archive, programs)
	cmd.Dir = top
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go run ./scripts/image: %w\n%s", err, out)
	}
	return archive, nil
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// command returns railctl verify, as a user without rights on the node runs it.
func (l *lab) command(args ...string) *exec.Cmd {
	all := append([]string{"verify", "--kubeconfig", l.Kubeconfig(), "-o", "json"}, args...)
	cmd := exec.Command(filepath.Join(testnet.Bin(l.t), "railctl"), all...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	return cmd
}

// outcome is what a railctl that has ended did.
type outcome struct {
	code        int
	out, errOut string
}

// start starts railctl, and returns a function that waits for its end.
func (l *lab) start(args ...string) (end func() outcome) {
	l.t.Helper()
	var out, errOut bytes.Buffer
	cmd := l.command(args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	began := time.Now()
	l.must(cmd.Start())
	return func() outcome {
		_ = cmd.Wait()
		l.t.Logf("railctl verify %s: %.1f s", strings.Join(args, " "), time.Since(began).Seconds())
		return outcome{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
	}
}

// result returns what railctl printed. It must have the exit code, and have said nothing on
// stderr.
func (l *lab) result(o outcome, code int) *verify.Result {
	l.t.Helper()
	if o.code != code || o.errOut != "" {
		l.t.Fatalf("exit code %d, not %d\n%s\n%s", o.code, code, o.errOut, o.out)
	}
	var r verify.Result
	if err := json.Unmarshal([]byte(o.out), &r); err != nil {
		l.t.Fatalf("not JSON: %v\n%s", err, o.out)
	}
	return &r
}

// verify runs railctl, which must have the exit code, say nothing on stderr, and leave nothing.
func (l *lab) verify(code int, args ...string) *verify.Result {
	l.t.Helper()
	return l.verifyWhile(code, func() {}, args...)
}

// verifyWhile calls during when railctl has begun.
func (l *lab) verifyWhile(code int, during func(), args ...string) *verify.Result {
	l.t.Helper()
	end := l.start(args...)
	during()
	r := l.result(end(), code)
	l.nothingLeft()
	return r
}

// cannot runs railctl, which must say nothing but why it cannot measure, and leave nothing. It
// returns that.
func (l *lab) cannot(args ...string) string {
	l.t.Helper()
	o := l.start(args...)()
	if o.code != verify.ExitUnknown || o.out != "" {
		l.t.Fatalf("exit code %d\n%s\n%s", o.code, o.errOut, o.out)
	}
	l.nothingLeft()
	return o.errOut
}

// nothingLeft fails the test if there is an object of a run.
func (l *lab) nothingLeft() {
	l.t.Helper()
	if left := l.objects(); left != "" {
		l.t.Errorf("it left behind:\n%s", left)
	}
}

// kubectl runs kubectl, which must succeed, and returns its stdout.
func (l *lab) kubectl(args ...string) string {
	l.t.Helper()
	out, err := l.Kubectl(context.Background(), args...)
	l.must(err)
	return out
}

// hold makes a pod on node-1 that has the networks, until the returned function is called or the
// test ends.
func (l *lab) hold(networks ...string) (end func()) {
	l.t.Helper()
	holder := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trainer", "annotations": {"k8s.v1.cni.cncf.io/networks": %q}},
		"spec": {"nodeName": "node-1", "terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": %q, "imagePullPolicy": "Never"}]}}`, strings.Join(networks, ","), cluster.ToolsImage)
	end = l.pod("trainer", holder)
	l.kubectl("wait", "--for=condition=Ready", "--timeout=3m", "pod/trainer")
	return end
}

// pod makes a pod, until the returned function is called or the test ends.
func (l *lab) pod(name, object string) (end func()) {
	l.t.Helper()
	end = l.undo(func() {
		if l.t.Failed() {
			l.t.Log(l.Report()) // with the pod
		}
		_, err := l.Kubectl(context.Background(), "delete", "pod", name, "--ignore-not-found", "--wait", "--timeout="+patience.String())
		l.must(err)
	})
	l.must(l.Apply(l.t.Context(), []byte(object)))
	return end
}

// undo returns a function that calls do once. Without a call the end of the test makes it.
func (l *lab) undo(do func()) (now func()) {
	var once sync.Once
	now = func() { once.Do(do) }
	l.t.Cleanup(now)
	return now
}

// jobs returns the names of all Jobs that runs have made, also of those that are gone.
func (l *lab) jobs() map[string]bool {
	l.t.Helper()
	made := map[string]bool{}
	for name := range strings.FieldsSeq(l.kubectl("get", "events", "--field-selector=reason=SuccessfulCreate,involvedObject.kind=Job", "--output=jsonpath={.items[*].involvedObject.name}")) {
		made[name] = true
	}
	return made
}

// objects lists the Jobs and pods of all runs.
func (l *lab) objects() string {
	l.t.Helper()
	return l.kubectl("get", "jobs,pods", "--all-namespaces", "--selector=rail-cni.io/verify", "--output=name")
}

// pods waits for the probers of a run on all nodes, and returns their namespaces by the number of
// the node. The programs that a test attaches to a NIC end with its return, so it attaches them in
// the pod: rail-cni refuses to lend a NIC that has one.
func (l *lab) pods() (found []*testnet.Netns) {
	l.t.Helper()
	pids := map[int]int{}
	l.await("the probers", func() bool {
		programs, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is valid
		for _, path := range programs {
			text, err := os.ReadFile(path)
			if err != nil || !bytes.HasPrefix(text, []byte("/railctl\x00verify\x00probe\x00")) {
				continue
			}
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			name, err := os.ReadFile(filepath.Join(filepath.Dir(path), "root/etc/hostname"))
			if m := podName.FindSubmatch(name); err == nil && m != nil {
				node, _ := strconv.Atoi(string(m[1]))
				pids[node] = pid
			}
		}
		return len(pids) == len(l.nodes)
	})
	for i := range l.nodes {
		found = append(found, testnet.OfProcess(l.t, pids[i]))
	}
	return found
}

// podName has the number of the node.
var podName = regexp.MustCompile(`^rail-verify-[0-9a-f]{8}-([0-9]+)-[0-9]+-`)

// asBefore fails the test unless all NICs are as they were before it.
func (l *lab) asBefore() {
	l.t.Helper()
	for i, n := range l.nodes {
		if d := n.Settled(l.before[i]); d != "" {
			l.t.Errorf("%s is not as it was:\n%s", l.Node(i).Name, d)
		}
	}
}

// home reports whether all NICs are on their nodes.
func (l *lab) home() bool {
	for _, n := range l.nodes {
		if !slices.ContainsFunc(l.rails, func(rail string) bool { return !n.Has(rail) }) {
			continue
		}
		return false
	}
	return true
}

// found returns the findings as "kind node-1/3".
func found(r *verify.Result) (all []string) {
	for _, f := range r.Findings {
		var ends []string
		for _, e := range f.Ends {
			ends = append(ends, fmt.Sprintf("%s/%d", e.Node, e.Rail))
		}
		join := ", "
		if f.Either {
			join = " or "
		}
		all = append(all, string(f.Kind)+" "+strings.Join(ends, join))
	}
	slices.Sort(all)
	return all
}

// await waits until done returns true, and returns how long that took.
func (l *lab) await(what string, done func() bool) time.Duration {
	l.t.Helper()
	began := time.Now()
	for !done() {
		if time.Since(began) > patience {
			l.t.Fatalf("still waiting for %s", what)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return time.Since(began)
}
