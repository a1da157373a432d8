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
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/objects"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/procs"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/records"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// Options has the places of the facts. The zero value has the places on a usual node.
type Options struct {
	StateDir string // state directory of the plugins; [nodefile.DefaultStateDir] if empty
	Node     string // name of the node; the host name if empty
	Version  string // version of the program

	// Sys, Proc and Root are the root directories of sysfs, of procfs and of the node's files. They
	// do not affect facts that are read by netlink, which always come from the running kernel.
	Sys, Proc, Root string

	BinDir, ConfDir string // the runtime's CNI directories, below Root; if empty, the directories in rail-agent's record
	InstallDir      string // the directory of rail-agent's record of files, below Root
	Socket          string // the socket of rail-agent; "agent.sock" in StateDir if empty

	// Status returns rail-agent's answer to GET /status. It is set if this process is rail-agent
	// itself, which may have no socket. If it is nil, the socket is asked.
	Status func() ([]byte, error) `json:"-"`

	// Client is the client of the API server. If it is nil, NoClient has the reason. NoClient is
	// nil if the user named no API server.
	Client   *kube.Client `json:"-"`
	NoClient error        `json:"-"`
	// OfPod: the client's account is that of the pod in which this process runs, and not of a
	// person.
	OfPod bool

	// Sample is the time between two reads of the error counters. If it is 0, the time is 1 s. If
	// it is negative, the error counters are not read, and other facts that only slow rules need
	// are not read either.
	Sample time.Duration

	// Functions is true if the settings of virtual functions are to be read. Set it only on a person's request: for
	// each virtual function the kernel asks the driver while it holds the lock of all interfaces, and some firmware
	// needs milliseconds to answer.
	Functions bool

	// Done, if it is not nil, is called each time a source was read. The arguments are the number
	// of sources that were read and the number of sources that are known so far. It may be called
	// from any goroutine.
	Done func(read, all int) `json:"-"`

	// Pending, if it is not nil, remembers sources that hang, so that later runs do not read them
	// again.
	Pending *Pending `json:"-"`

	noPods, noFiles error // the reason not to read anything about pods, and the reason not to read their files; nil to read
}

// localTime bounds a source that is the kernel's, or a file of the node.
const localTime = 4 * time.Second

// maxAtOnce returns the maximum number of threads that read at the same time. With more threads
// than the CPUs can run, each thread would exceed its time limit.
func maxAtOnce() int { return min(8*runtime.NumCPU(), 24) }

// collector is one run.
type collector struct {
	Options
	root    bool
	host    *os.File // the caller's netns
	held    []*ledger.Record
	node    fact.Fact[bool] // whether the machine is a node of Kubernetes
	nvidia  fact.Fact[bool] // whether NVIDIA's driver is loaded
	slots   chan struct{}
	readers sync.WaitGroup // includes readers that still run after their time limit
	waiting sync.WaitGroup

	mu        sync.Mutex
	read, all int

	procs     *procs.Reader
	records   *records.Reader
	objects   *objects.Reader
	podsByAPI func() (map[string]objects.Pod, error)
}

// Node returns the facts of the node. The calling thread must be in the host's network namespace.
// If the user is not root, Node returns only the facts that the user can read. It returns within
// seconds even if sources hang, and immediately when ctx ends.
func Node(ctx context.Context, o Options) *fact.Facts {
	o = o.filled()
	c := &collector{Options: o, root: os.Geteuid() == 0, slots: make(chan struct{}, maxAtOnce())}
	f := &fact.Facts{
		Schema: fact.Schema, Taken: time.Now().UTC().Truncate(time.Second), Node: c.Node, Version: o.Version,
		Host: &fact.Host{}, NICs: &fact.NICs{}, Ledger: &fact.Ledger{Dir: c.StateDir}, CNI: &fact.CNI{},
		Kubelet: &fact.Kubelet{}, Agent: &fact.Agent{}, Configs: &fact.Configs{},
	}
	c.procs = procs.NewReader(files.Roots{Sys: o.Sys, Proc: o.Proc, Root: o.Root})
	c.records = &records.Reader{StateDir: o.StateDir, IsRoot: c.root}
	c.objects = &objects.Reader{Client: o.Client, NoClient: o.NoClient, OfPod: o.OfPod, NodeName: o.Node}
	if host, err := os.Open("/proc/thread-self/ns/net"); err == nil {
		c.host = host
		c.readers.Add(1) // this function counts as a reader
		go func() { c.readers.Wait(); _ = host.Close() }()
		defer c.readers.Done()
	}
	var records fact.Fact[[]*ledger.Record]
	take(ctx, c, &records, c.StateDir, localTime, func(context.Context) ([]*ledger.Record, error) { return c.records.SinceBoot() })
	take(ctx, c, &c.node, c.procs.HostPath(kubeletDir), localTime, func(context.Context) (bool, error) { return files.Exists(c.procs.HostPath(kubeletDir)) })
	nvidia := filepath.Join(c.Sys, "module/nvidia")
	take(ctx, c, &c.nvidia, nvidia, localTime, func(context.Context) (bool, error) { return files.Exists(nvidia) })
	c.waiting.Wait()
	c.held = records.Value
	var pods fact.Fact[[]fact.Pod]
	take(ctx, c, &pods, "the namespaces of pods", objects.AnswerTime, func(context.Context) ([]fact.Pod, error) {
		return c.pods(func(r *ledger.Record) bool { return netns.Exists(r.Netns.ID, r.Netns.Path) }), nil
	})
	c.waiting.Wait()
	if f.Pods = pods.Value; !pods.OK() {
		f.Pods = c.pods(func(*ledger.Record) bool { return true }) // it is not known which pods live, so all count as alive, and their facts are missing
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

// filled returns the options, with the usual places in all empty fields.
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

// take calls read on a separate thread in the caller's netns, and writes the result to the fact to
// before c.waiting ends. If read takes longer than limit, the fact has failed, and a later result
// of read is dropped. So read must not write to anything that others use.
func take[T any](ctx context.Context, c *collector, to *fact.Fact[T], source string, limit time.Duration, read func(context.Context) (T, error)) {
	c.mu.Lock()
	c.all++
	c.mu.Unlock()
	c.waiting.Go(func() {
		c.slots <- struct{}{}
		defer func() { <-c.slots }()
		whole := ctx // the context of the whole run
		ctx, cancel := context.WithTimeout(whole, limit)
		defer cancel()
		defer c.done()
		found := make(chan fact.Fact[T], 1)
		err := context.Cause(ctx) // do not start a thread if nobody waits for its answer
		if err == nil {
			err = c.Pending.begin(source)
		}
		if err != nil {
			*to = fact.Failed[T](source, err)
			return
		}
		c.readers.Go(func() {
			defer c.Pending.end(source)
			found <- onThread(c, source, func() fact.Fact[T] { value, err := read(ctx); return fact.From(value, source, err) })
		})
		select {
		case *to = <-found:
		case <-ctx.Done():
			select { // an answer that arrived at the last moment counts
			case *to = <-found:
			case <-time.After(100 * time.Millisecond):
				if whole.Err() != nil { // the whole run has ended, so it is not known whether the source hangs
					*to = fact.Failed[T](source, fmt.Errorf("not read before the end of the run: %w", whole.Err()))
					return
				}
				c.Pending.giveUp(source)
				*to = fact.Failed[T](source, fmt.Errorf("not read within %v: %w", limit, ctx.Err()))
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

// onThread calls read on a thread in the caller's netns. If read panics, the fact has the panic as
// its error, so that one broken source does not end the whole run.
func onThread[T any](c *collector, source string, read func() fact.Fact[T]) (value fact.Fact[T]) {
	err := contain.Panics(func() error {
		err := c.enter()
		if err == nil {
			value = read()
		}
		return err
	})
	if p := (*contain.PanicError)(nil); errors.As(err, &p) {
		err = fmt.Errorf("reading it panicked: %v; please report this defect", p.Value)
	}
	if err != nil {
		return fact.Failed[T](source, err)
	}
	return value
}

// enter locks the goroutine to its thread. If the thread is not in the caller's netns, enter moves
// the thread there. The thread ends with the goroutine.
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
		return nil // without a move, no privilege is needed
	}
	return unix.Setns(int(c.host.Fd()), unix.CLONE_NEWNET)
}

// hostRoot is the root directory of process 1.
const hostRoot = "/proc/1/root"

// NodeRoot returns the root directory of the node's files for [Options]. On the host it is "/". In
// a container with the host's processes (hostPID: true) it is the root directory of process 1.
func NodeRoot() string {
	self, err := os.Readlink("/proc/self/ns/mnt")
	first, firstErr := os.Readlink("/proc/1/ns/mnt")
	_, noFiles := os.Stat(hostRoot + "/usr") // if process 1 is the program of a pod, its root has no /usr
	if err != nil || firstErr != nil || noFiles != nil || self == first {
		return "/"
	}
	return hostRoot
}
