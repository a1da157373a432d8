package main

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// options is the command line.
type options struct {
	bin, peers, out, label string
	rounds                 int
	settle                 time.Duration
	rig                    string
	etcds                  []string
	cluster, pods          bool
	scenes                 string
	scale                  bool
	nodes, shares          string
	lines                  string
	limit                  time.Duration
	inside, guest          bool
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "`directory` of our binaries")
	flag.StringVar(&o.peers, "peers", "bin/peers", "`directory` of the CNI project's binaries")
	flag.StringVar(&o.out, "out", "bin/bench", "`directory` for bench.md and bench.json")
	flag.StringVar(&o.label, "label", "devel", "what is measured, for the report")
	flag.IntVar(&o.rounds, "rounds", 0, "how often each contender has its turn (default 40, in the rig 20, with -cluster or -pods 3)")
	flag.DurationVar(&o.settle, "settle", 0, "pause before each measured verb (default 80ms, in the rig 300ms, with -pods 3s)")
	flag.StringVar(&o.rig, "rig", "", "measure with RDMA, in the virtual machine that `program` (integration/rig/exec) runs")
	flag.BoolVar(&o.cluster, "cluster", false, "measure addresses of a cluster, against whereabouts on a real API server")
	flag.BoolVar(&o.pods, "pods", false, "measure pods of a real cluster")
	flag.StringVar(&o.scenes, "scenes", "", "with -pods: measure only the scenes with these `names`, of "+sceneNames()+" (default all)")
	flag.BoolVar(&o.scale, "scale", false, "measure addresses of many nodes that start at once")
	flag.StringVar(&o.nodes, "nodes", "10,50,200,1000", fmt.Sprintf("with -scale: the `numbers` of nodes; more than %d with blocks only", maxWithEntries))
	flag.StringVar(&o.lines, "lines", kindEntries+","+kindBlocks, "with -scale: what is measured, `names` of "+kindEntries+", "+kindBlocks+", "+lineNames())
	flag.StringVar(&o.shares, "shares", strconv.Itoa(chartShares),
		"with -scale, entry by entry: the `numbers` of concurrency shares of the chart's priority level, apiPriority.shares")
	flag.DurationVar(&o.limit, "limit", scaleLimit, "with -scale: the time after which a run ends")
	flag.Func("etcd", "with -cluster: measure with this etcd `program` as well (may be repeated)", func(path string) error {
		o.etcds = append(o.etcds, path)
		return nil
	})
	flag.BoolVar(&o.inside, "inside", false, "used by the program itself: already in the node's namespaces")
	flag.BoolVar(&o.guest, "guest", false, "used by the program itself: already in the rig's virtual machine")
	flag.Parse()
	if !o.pods {
		// The cluster's package keeps the main thread for this goroutine, which
		// makes each wait for a child a little longer.
		runtime.UnlockOSThread()
	}

	if err := start(o); err != nil {
		var exit *exec.ExitError
		if again := o.rig != "" || !o.inside && !o.guest && !o.pods; again && errors.As(err, &exit) {
			os.Exit(exit.ExitCode()) // this program, started again, has printed why
		}
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func start(o options) error {
	o.rounds = cmp.Or(o.rounds, defaultRounds(o))
	o.settle = cmp.Or(o.settle, defaultSettle(o))
	if o.rounds < 1 {
		return errors.New("-rounds must be at least 1")
	}
	if o.rig != "" {
		return benchInRig(o)
	}
	if os.Geteuid() != 0 {
		return errors.New("measuring needs root: it makes network namespaces and moves links between them")
	}
	if o.guest {
		return guest(o)
	}
	if o.pods {
		return benchPods(o)
	}
	if !o.inside {
		return reexec(os.Args[1:])
	}
	if err := enterNode(); err != nil {
		return err
	}
	if o.cluster {
		return benchCluster(o)
	}
	if o.scale {
		return benchScale(o)
	}
	return bench(o)
}

// bench measures, inside the node, and reports.
func bench(o options) error {
	p, err := findPlaces(o)
	if err != nil {
		return err
	}
	defer os.RemoveAll(p.disk)
	a, err := conditions(o, p)
	if err != nil {
		return err
	}
	list := contenders(p)
	s, err := newScratch("/run")
	if err != nil {
		return err
	}
	if err := setUp(s, list); err != nil {
		return err
	}
	files := binaries(p)
	m := run(s, list, files, pace{o.rounds, o.settle, progress(o.rounds)})
	m.count(s, list, o.settle)
	if a.LoadAfter, err = loadAverage(); err != nil {
		return err
	}
	return newReport(a, list, files, m).publish(o.out, "bench")
}

// publish prints the report, and writes it to the directory dir. It fails if
// the report is incomplete.
func (r *report) publish(dir, name string) error {
	r.text(os.Stdout)
	if err := r.write(dir, name); err != nil {
		return err
	}
	fmt.Printf("\nwritten to %s\n", filepath.Join(dir, name+".{md,json}"))
	if missing := r.unmeasured(); len(missing) > 0 {
		return fmt.Errorf("not measured: %s (the tables say why)", strings.Join(missing, ", "))
	}
	return nil
}

func findPlaces(o options) (places, error) {
	p := places{state: "/run/rail-cni"}
	var err error
	if p.ip, err = exec.LookPath("ip"); err != nil {
		return p, fmt.Errorf("the floor is measured with ip(8); install iproute2: %w", err)
	}
	for _, dir := range []struct {
		to   *string
		from string
	}{{&p.bin, o.bin}, {&p.peers, o.peers}} {
		if *dir.to, err = filepath.Abs(dir.from); err != nil {
			return p, err
		}
	}
	if err := os.MkdirAll(p.state, 0o700); err != nil {
		return p, err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return p, err
	}
	out, err := filepath.Abs(o.out)
	if err != nil {
		return p, err
	}
	if p.disk, err = os.MkdirTemp(out, "state-"); err != nil {
		return p, err
	}
	return p, openPaths(filepath.Join(p.disk, "node.yaml"))
}

// openPaths allows the plugins to use the bench's state directories and
// kubeconfigs, which are temporary.
func openPaths(nodeFile string) error {
	return errors.Join(os.WriteFile(nodeFile, []byte("paths: [/**]\n"), 0o600), os.Setenv(nodefile.PathEnv, nodeFile))
}

// nodeFileEnv returns the variable of a plugin's environment that names the
// node file.
func nodeFileEnv() string { return nodefile.PathEnv + "=" + os.Getenv(nodefile.PathEnv) }

// conditions returns the conditions of the run, which a reader needs to judge
// the figures.
func conditions(o options, p places) (about, error) {
	a, err := machine()
	if err != nil {
		return a, err
	}
	a.Label, a.Rounds = o.label, o.rounds
	if a.Against, err = against("%s", o.peers, "host-device"); err != nil {
		return a, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(p.disk, &fs); err != nil {
		return a, err
	}
	a.State = "state of all plugins on tmpfs (no fsync), but for the row that says disk"
	if fs.Type == unix.TMPFS_MAGIC {
		a.State = "state of all plugins on tmpfs (no fsync), the row that says disk too: -out is on tmpfs"
	}
	return a, nil
}

// against returns the text with the modules of programs below dir, as "containernetworking/plugins
// v1.10.0". The Go linker recorded them, so they are those that are measured.
func against(text, dir string, programs ...string) (string, error) {
	var peers []any
	for _, program := range programs {
		info, err := buildinfo.ReadFile(filepath.Join(dir, program))
		if err != nil {
			return "", fmt.Errorf("the version of a peer, which \"make peers\" builds: %w", err)
		}
		peers = append(peers, strings.TrimPrefix(info.Main.Path, "github.com/")+" "+info.Main.Version)
	}
	return fmt.Sprintf(text, peers...), nil
}

// machine returns the facts about the machine, before the run.
func machine() (about, error) {
	a := about{CPUs: runtime.NumCPU()}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return a, err
	}
	a.Kernel = unix.ByteSliceToString(name.Release[:])
	var err error
	a.LoadBefore, err = loadAverage()
	return a, err
}

func defaultRounds(o options) int {
	switch {
	case o.cluster, o.pods:
		return 3
	case o.rig != "":
		return 20
	}
	return 40
}

// defaultSettle returns the default pauses, see doc.go.
func defaultSettle(o options) time.Duration {
	switch {
	case o.pods:
		return 3 * time.Second
	case o.rig != "":
		return 300 * time.Millisecond
	}
	return 80 * time.Millisecond
}

func loadAverage() (string, error) {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "", err
	}
	first, _, _ := bytes.Cut(data, []byte(" "))
	return string(first), nil
}

// progress returns a function that shows the progress on stderr, if that is a
// terminal.
func progress(rounds int) func(int) {
	info, err := os.Stderr.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return func(int) {}
	}
	return func(round int) {
		fmt.Fprintf(os.Stderr, "\rround %d of %d\x1b[K", round, rounds)
		if round == rounds {
			fmt.Fprint(os.Stderr, "\r\x1b[K")
		}
	}
}

// write writes the report to dir, as markdown and as JSON.
func (r *report) write(dir, name string) error {
	var md, js bytes.Buffer
	r.markdown(&md)
	if err := r.json(&js); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, name+".md"), md.Bytes(), 0o644),
		os.WriteFile(filepath.Join(dir, name+".json"), js.Bytes(), 0o644),
	)
}
