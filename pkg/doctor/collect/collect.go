package collect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/contain"
	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// Options say where the facts are. The zero value has the places of a usual node.
type Options struct {
	StateDir string // state directory of the plugins; [nodefile.DefaultStateDir] if empty
	Node     string // name of the node; the host name if empty
	Version  string // of the program

	// Sys, Proc and Root are the roots of sysfs, of procfs and of the node's files. Facts that
	// need the kernel's answers by netlink are of the running kernel, whatever these are.
	Sys, Proc, Root string

	BinDir, ConfDir string // the runtime's CNI directories, below Root; those in the record if empty
	InstallDir      string // of rail-agent's record of files, below Root
	Socket          string // rail-agent's; "agent.sock" in StateDir if empty

	// Status, unless nil, returns the answer of rail-agent to GET /status: the process is
	// rail-agent, and perhaps without a socket.
	Status func() ([]byte, error) `json:"-"`

	// Client is the client of the API server. If it is nil, NoClient is the reason, or nil if the
	// user named no API server.
	Client   *kube.Client `json:"-"`
	NoClient error        `json:"-"`
	// OfPod: the client's account is that of the pod in which this process runs, and not of a
	// person.
	OfPod bool

	// Sample is the time between two reads of the error counters; 1 s if it is 0. If it is
	// negative they are not read, and no other facts that only slow rules need.
	Sample time.Duration

	// Functions: the settings of virtual functions are read. The kernel asks the driver for each of them under the lock
	// of all interfaces, and some firmware takes milliseconds: only for a person who asks.
	Functions bool

	// Done, unless nil, is called when a source was read, with the number of those that are
	// read and of all that are known so far. It may be called from any goroutine.
	Done func(read, all int) `json:"-"`

	// Pending, unless nil, keeps sources that hang from being read by each run.
	Pending *Pending `json:"-"`

	noPods, noFiles error // why nothing of pods is read, or none of their files; nil if it is
}

// The bounds of one source.
const (
	localTime  = 4 * time.Second // the kernel and the node's files
	answerTime = 1500 * time.Millisecond
)

// maxAtOnce returns the bound of the threads that read at the same time. With more of them than
// the CPUs can run, each of them takes longer than its time.
func maxAtOnce() int { return min(8*runtime.NumCPU(), 24) }

// errRoot is the error of facts that only root can read.
var errRoot = errors.New("only root can read it; run as root")

// collector is one run.
type collector struct {
	Options
	root    bool
	host    *os.File // the caller's netns
	records []*ledger.Record
	node    doctor.Fact[bool] // whether the machine is a node of Kubernetes
	nvidia  doctor.Fact[bool] // whether NVIDIA's driver is loaded
	slots   chan struct{}
	readers sync.WaitGroup // those that still run after their time are among them
	waiting sync.WaitGroup

	mu        sync.Mutex
	read, all int

	processes func() (*processes, error)
	podsByAPI func() (map[string]podObject, error)
}

// Node returns the facts of the node. Its network namespace is that of the calling thread,
// which must be the host's. As a user other than root it returns what that user can know. It
// ends within seconds even if sources hang, and at once when ctx ends.
func Node(ctx context.Context, o Options) *doctor.Facts {
	c := &collector{Options: o.filled(), root: os.Geteuid() == 0, slots: make(chan struct{}, maxAtOnce())}
	f := &doctor.Facts{
		Schema: doctor.Schema, Taken: time.Now().UTC().Truncate(time.Second), Node: c.Node, Version: o.Version,
		Host: &doctor.Host{}, NICs: &doctor.NICs{}, Ledger: &doctor.Ledger{Dir: c.StateDir}, CNI: &doctor.CNI{},
		Kubelet: &doctor.Kubelet{}, Agent: &doctor.Agent{}, Configs: &doctor.Configs{},
	}
	c.processes = sync.OnceValues(c.scanProcesses)
	if host, err := os.Open("/proc/thread-self/ns/net"); err == nil {
		c.host = host
		c.readers.Add(1) // this function
		go func() { c.readers.Wait(); _ = host.Close() }()
		defer c.readers.Done()
	}
	var records doctor.Fact[[]*ledger.Record]
	take(ctx, c, &records, c.StateDir, localTime, c.ledgerRecords)
	take(ctx, c, &c.node, c.hostPath(kubeletDir), localTime, func(context.Context) (bool, error) { return exists(c.hostPath(kubeletDir)) })
	nvidia := filepath.Join(c.Sys, "module/nvidia")
	take(ctx, c, &c.nvidia, nvidia, localTime, func(context.Context) (bool, error) { return exists(nvidia) })
	c.waiting.Wait()
	c.records = records.Value
	var pods doctor.Fact[[]doctor.Pod]
	take(ctx, c, &pods, "the namespaces of pods", answerTime, func(context.Context) ([]doctor.Pod, error) {
		return c.pods(func(r *ledger.Record) bool { return netns.Exists(r.Netns.ID, r.Netns.Path) }), nil
	})
	c.waiting.Wait()
	if f.Pods = pods.Value; !pods.OK() {
		f.Pods = c.pods(func(*ledger.Record) bool { return true }) // in doubt they live, and their facts are missing
	}

	c.ofHost(ctx, f.Host)
	nics := c.ofNICs(ctx, f)
	c.ofLedger(ctx, f.Ledger)
	c.ofCNI(ctx, f.CNI)
	c.ofKubelet(ctx, f.Kubelet)
	c.ofAgent(ctx, f.Agent)
	c.ofCluster(ctx, f)
	for i := range f.Pods {
		c.ofPod(ctx, &f.Pods[i])
	}
	c.waiting.Wait()
	nics()
	if !c.isNode() {
		f.Kubelet = nil
	}
	return f
}

// filled returns the options with the usual places for empty ones.
func (o Options) filled() Options {
	for _, d := range []struct {
		to    *string
		usual string
	}{
		{&o.StateDir, nodefile.DefaultStateDir},
		{&o.Sys, "/sys"},
		{&o.Proc, "/proc"},
		{&o.Root, "/"},
		{&o.InstallDir, install.DefaultDir},
	} {
		if *d.to == "" {
			*d.to = d.usual
		}
	}
	if o.Socket == "" {
		o.Socket = filepath.Join(o.StateDir, "agent.sock")
	}
	if o.Node == "" {
		o.Node, _ = os.Hostname()
	}
	if o.Sample == 0 {
		o.Sample = time.Second
	}
	if o.Client == nil && o.NoClient == nil {
		o.NoClient = errors.New("no kubeconfig; name one with --kubeconfig or $KUBECONFIG")
	}
	return o
}

// hostPath returns a path of the node's root file system.
func (c *collector) hostPath(path string) string { return filepath.Join(c.Root, path) }

// take reads a fact on a thread of its own in the caller's netns, and writes it to the fact
// before c.waiting ends. If that takes longer than limit the fact has failed, and what read
// returns later is dropped: read must not write to anything else.
func take[T any](ctx context.Context, c *collector, to *doctor.Fact[T], source string, limit time.Duration, read func(context.Context) (T, error)) {
	c.mu.Lock()
	c.all++
	c.mu.Unlock()
	c.waiting.Go(func() {
		c.slots <- struct{}{}
		defer func() { <-c.slots }()
		whole := ctx // of the run
		ctx, cancel := context.WithTimeout(whole, limit)
		defer cancel()
		defer c.done()
		found := make(chan doctor.Fact[T], 1)
		err := context.Cause(ctx) // no thread for an answer that nobody waits for
		if err == nil {
			err = c.Pending.begin(source)
		}
		if err != nil {
			*to = doctor.Failed[T](source, err)
			return
		}
		c.readers.Go(func() {
			defer c.Pending.end(source)
			found <- onThread(c, source, func() doctor.Fact[T] { value, err := read(ctx); return doctor.From(value, source, err) })
		})
		select {
		case *to = <-found:
		case <-ctx.Done():
			select { // an answer at the last moment counts
			case *to = <-found:
			case <-time.After(100 * time.Millisecond):
				if whole.Err() != nil { // the run has ended, which says nothing about the source
					*to = doctor.Failed[T](source, fmt.Errorf("not read before the end of the run: %w", whole.Err()))
					return
				}
				c.Pending.giveUp(source)
				*to = doctor.Failed[T](source, fmt.Errorf("not read within %v: %w", limit, ctx.Err()))
			}
		}
	})
}

func (c *collector) done() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read++
	if c.Done != nil {
		c.Done(c.read, c.all)
	}
}

// onThread calls read on a thread in the caller's netns. A panic is its error: facts of a
// broken node must not end the rest.
func onThread[T any](c *collector, source string, read func() doctor.Fact[T]) (fact doctor.Fact[T]) {
	err := contain.Panics(func() error {
		err := c.enter()
		if err == nil {
			fact = read()
		}
		return err
	})
	if p := (*contain.PanicError)(nil); errors.As(err, &p) {
		err = fmt.Errorf("reading it panicked: %v; please report this defect", p.Value)
	}
	if err != nil {
		return doctor.Failed[T](source, err)
	}
	return fact
}

// enter locks the goroutine's thread, and moves it to the caller's netns if it is in another.
// The thread ends with the goroutine.
func (c *collector) enter() error {
	runtime.LockOSThread()
	if c.host == nil {
		return errors.New("the network namespace of this process is unknown: /proc/thread-self/ns/net cannot be opened")
	}
	var want, have unix.Stat_t
	if err := errors.Join(unix.Fstat(int(c.host.Fd()), &want), unix.Stat("/proc/thread-self/ns/net", &have)); err != nil {
		return err
	}
	if want.Ino == have.Ino {
		return nil // so no privilege is needed
	}
	return unix.Setns(int(c.host.Fd()), unix.CLONE_NEWNET)
}
