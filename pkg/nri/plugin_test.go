package nri

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/ttrpc"

	"github.com/rail-cni/rail-cni/integration/nri/fakeruntime"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/notify"
	"github.com/rail-cni/rail-cni/pkg/publish"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
)

const patience = 30 * time.Second

// await waits until done returns true.
func await(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s after %v", what, patience)
		}
	}
}

// startRuntime starts the runtime's side of NRI, with the same library as containerd.
func startRuntime(t testing.TB, socket string) *adaptation.Adaptation {
	t.Helper()
	r, err := fakeruntime.Start(socket, t.TempDir(), patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return r
}

// lab is a plugin that is connected to a runtime.
type lab struct {
	*Plugin
	runtime *adaptation.Adaptation
	root    string // of the host's files
	log     bytes.Buffer

	mu      sync.Mutex
	pods    map[string]*publish.Publication // by sandbox
	lookup  func(context.Context) error
	asked   int // how often
	notices []component.Notice
}

// newLab returns a lab with a runtime, and the host of [newPlugin].
func newLab(t testing.TB) *lab {
	t.Helper()
	l := newPlugin(t)
	l.runtime = startRuntime(t, l.Socket)
	l.ready(t)
	return l
}

// newPlugin returns a lab without a runtime. Its host has the pods' directories, and the char
// devices /dev/infiniband/{uverbs0,uverbs1,rdma_cm}, which are links to other char devices.
func newPlugin(t testing.TB) *lab {
	t.Helper()
	l := &lab{root: t.TempDir(), pods: map[string]*publish.Publication{}}
	for dir, links := range map[string]map[string]string{
		"run/rail-cni/pods/uid-1": nil,
		"dev/infiniband":          {"uverbs0": "/dev/null", "uverbs1": "/dev/zero", "rdma_cm": "/dev/full"},
	} {
		if err := os.MkdirAll(filepath.Join(l.root, dir), 0o750); err != nil {
			t.Fatal(err)
		}
		for name, to := range links {
			if err := os.Symlink(to, filepath.Join(l.root, dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	socket := filepath.Join(scratch.Dir(t), "nri.sock")
	l.Plugin = New(Options{Socket: socket, Root: l.root, Lookup: l.find, Dirs: newDirs(t), Notify: l.hear, Log: slog.New(slog.NewTextHandler(&l.log, nil))})
	l.lookupTime = patience // the machine may be busy
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return l
}

// ready waits until the runtime asks the plugin. The runtime begins to ask some time after it has
// configured the plugin.
func (l *lab) ready(t testing.TB) {
	t.Helper()
	await(t, "question of the runtime", func() bool {
		l.mu.Lock()
		l.asked = 0
		l.mu.Unlock()
		_, _ = l.create(t, &api.PodSandbox{Id: "probe"}, &api.Container{})
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.asked > 0
	})
}

func (l *lab) find(ctx context.Context, sandboxID string) (*publish.Publication, error) {
	l.mu.Lock()
	told, lookup := l.pods[sandboxID], l.lookup
	l.asked++
	l.mu.Unlock()
	if lookup != nil {
		if err := lookup(ctx); err != nil {
			return nil, err
		}
	}
	return told, nil
}

func (l *lab) hear(n component.Notice) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.notices = append(l.notices, n)
}

// heard returns the messages of the notices since the last call.
func (l *lab) heard() (messages []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.notices {
		messages = append(messages, n.Reason+": "+n.Message)
	}
	l.notices = nil
	return messages
}

// hold makes the pod of a sandbox hold a rail with two char devices.
func (l *lab) hold(sandbox string) *publish.Publication {
	rail := 0
	told := &publish.Publication{
		Dir:      "/run/rail-cni/pods/uid-1",
		Settings: railinfo.Settings{Env: []railinfo.Family{railinfo.NCCL, railinfo.UCX}, Mount: true, Memlock: true, Devices: true},
		Rails: &railinfo.Rails{Schema: railinfo.Schema, Rails: []railinfo.Rail{{
			Rail: &rail, IfName: "net1", RDMA: "mlx5_0", Port: 1, LinkLayer: "Ethernet",
			CharDevices: []string{"/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"},
		}}},
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pods[sandbox] = told
	return told
}

// create does the same as the runtime when it makes a container.
func (l *lab) create(t testing.TB, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, error) {
	t.Helper()
	pod.Namespace, pod.Name, pod.Uid = "default", "p", "uid-1"
	c.Id, c.Name, c.PodSandboxId = "c-"+pod.Id, "c", pod.Id
	answer, err := l.runtime.CreateContainer(t.Context(), &api.CreateContainerRequest{Pod: pod, Container: c})
	return answer.GetAdjust(), err
}

// given has everything that a container got.
type given struct {
	env     map[string]string
	mounts  []string
	memlock []uint64 // hard and soft
	devices []string
}

func of(a *api.ContainerAdjustment) given {
	g := given{env: map[string]string{}}
	for _, v := range a.GetEnv() {
		g.env[v.Key] = v.Value
	}
	for _, m := range a.GetMounts() {
		g.mounts = append(g.mounts, m.Source+" "+m.Destination+" "+strings.Join(m.Options, ","))
	}
	for _, r := range a.GetRlimits() {
		g.memlock = append(g.memlock, r.Hard, r.Soft)
	}
	for _, d := range a.GetLinux().GetDevices() {
		g.devices = append(g.devices, d.Path)
	}
	return g
}

const theMount = "/run/rail-cni/pods/uid-1 /run/rail-cni/pod rbind,ro,nosuid,nodev,noexec"

var theDevices = []string{"/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm"}

func TestContainersOfPodsWithRailsGetWhatTheSettingsSay(t *testing.T) {
	l := newLab(t)
	for name, c := range map[string]struct {
		annotation string
		change     func(*railinfo.Settings)
		variables  []string // among others
		not        []string
		mounts     []string
		memlock    bool
		devices    []string
	}{
		"all": {variables: []string{"NCCL_IB_HCA", "UCX_NET_DEVICES", listName}, mounts: []string{theMount}, memlock: true, devices: theDevices},
		"one family": {
			annotation: "nccl", variables: []string{"NCCL_IB_HCA", listName}, not: []string{"UCX_NET_DEVICES"},
			mounts: []string{theMount}, memlock: true, devices: theDevices,
		},
		"the pod says none": {annotation: "none", not: []string{"NCCL_IB_HCA", "UCX_NET_DEVICES", listName}},
		"no mount": {
			change: func(s *railinfo.Settings) { s.Mount = false }, variables: []string{"NCCL_IB_HCA"}, memlock: true, devices: theDevices,
		},
		"no limit": {
			change: func(s *railinfo.Settings) { s.Memlock = false }, variables: []string{"NCCL_IB_HCA"}, mounts: []string{theMount}, devices: theDevices,
		},
		"no devices": {
			change: func(s *railinfo.Settings) { s.Devices = false }, variables: []string{"NCCL_IB_HCA"}, mounts: []string{theMount}, memlock: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			told := l.hold("s")
			if c.change != nil {
				c.change(&told.Settings)
			}
			pod := &api.PodSandbox{Id: "s", Annotations: map[string]string{}}
			if c.annotation != "" {
				pod.Annotations[railinfo.PublishAnnotation] = c.annotation
			}
			a, err := l.create(t, pod, &api.Container{Env: []string{"PATH=/bin"}})
			if err != nil {
				t.Fatal(err)
			}
			g := of(a)
			for _, v := range c.variables {
				if g.env[v] == "" {
					t.Errorf("no %s in %v", v, g.env)
				}
			}
			for _, v := range c.not {
				if _, ok := g.env[v]; ok {
					t.Errorf("%s in %v", v, g.env)
				}
			}
			if !slices.Equal(g.mounts, c.mounts) || !slices.Equal(g.devices, c.devices) || (len(g.memlock) > 0) != c.memlock {
				t.Errorf("%+v", g)
			}
			if heard := l.heard(); len(heard) > 0 && !strings.Contains(heard[0], "MemlockLimited") {
				t.Error(heard)
			}
		})
	}
}

// TestUserspaceDriverMayLockMemory: a NIC with a userspace driver has no RDMA device and no
// interface, but DPDK locks memory for it. A rail that has only an interface needs no locked
// memory.
func TestUserspaceDriverMayLockMemory(t *testing.T) {
	l := newLab(t)
	for ifName, limit := range map[string]bool{"": true, "net1": false} {
		told := l.hold("s")
		told.Rails.Rails = []railinfo.Rail{{Rail: told.Rails.Rails[0].Rail, IfName: ifName}}
		a, err := l.create(t, &api.PodSandbox{Id: "s"}, &api.Container{})
		if g := of(a); err != nil || (len(g.memlock) > 0) != limit {
			t.Errorf("rail with the interface %q: limit %v, %v", ifName, g.memlock, err)
		}
	}
}

func TestDevicesHaveTheHostsNumbersAndMode(t *testing.T) {
	l := newLab(t)
	l.hold("s")
	a, err := l.create(t, &api.PodSandbox{Id: "s"}, &api.Container{})
	if err != nil {
		t.Fatal(err)
	}
	d := a.GetLinux().GetDevices()[1] // /dev/zero
	if d.Type != "c" || d.Major != 1 || d.Minor != 5 || d.FileMode.GetValue() != 0o666 || d.Uid.GetValue() != 0 {
		t.Errorf("%+v", d)
	}
}

func TestWhatTheContainerHasStays(t *testing.T) {
	l := newLab(t)
	l.hold("s")
	a, err := l.create(t, &api.PodSandbox{Id: "s"}, &api.Container{
		Env:     []string{"NCCL_IB_HCA=mlx5_7", "UCX_NET_DEVICES="},
		Mounts:  []*api.Mount{{Destination: railinfo.MountPoint + "/", Source: "/elsewhere", Type: "bind"}},
		Rlimits: []*api.POSIXRlimit{{Type: memlockType, Hard: 1 << 20, Soft: 1 << 20}},
		Linux:   &api.LinuxContainer{Devices: []*api.LinuxDevice{{Path: "/dev/infiniband/uverbs0", Type: "c"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	g := of(a)
	for _, v := range []string{"NCCL_IB_HCA", "UCX_NET_DEVICES"} {
		if value, ok := g.env[v]; ok || strings.Contains(g.env[listName], v) {
			t.Errorf("%s=%s, and the list %q", v, value, g.env[listName])
		}
	}
	if len(g.mounts) > 0 || len(g.memlock) > 0 || !slices.Equal(g.devices, theDevices[1:]) {
		t.Errorf("%+v", g)
	}
}

// TestReadOnlyMountAboveTheDirectoryKeepsNothingFromStarting: in a volume that is read-only, a
// runtime cannot make the directory, and it would not start the container.
func TestReadOnlyMountAboveTheDirectoryKeepsNothingFromStarting(t *testing.T) {
	l := newLab(t)
	l.hold("s")
	for _, c := range []struct {
		at, option string
		mounted    bool
	}{{"/run", "ro", false}, {"/run/rail-cni/", "ro", false}, {"/run", "rw", true}, {"/run/rail", "ro", true}, {"/", "ro", true}} {
		a, err := l.create(t, &api.PodSandbox{Id: "s"}, &api.Container{Mounts: []*api.Mount{{Destination: c.at, Options: []string{"rbind", c.option}}}})
		if err != nil {
			t.Fatal(err)
		}
		g := of(a)
		if (len(a.GetMounts()) > 0) != c.mounted || g.env["NCCL_IB_HCA"] == "" || !c.mounted && g.env["NCCL_TOPO_FILE"] != "" {
			t.Errorf("%+v: mounts %v, environment %v", c, a.GetMounts(), g.env)
		}
	}
}

func TestListNamesTheVariablesThatWereSet(t *testing.T) {
	l := newLab(t)
	l.hold("s")
	a, err := l.create(t, &api.PodSandbox{Id: "s"}, &api.Container{Env: []string{"UCX_NET_DEVICES=x"}})
	if err != nil {
		t.Fatal(err)
	}
	env := of(a).env
	list := env[listName]
	delete(env, listName)
	names := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
	if slices.Sort(names); !slices.Equal(names, slices.Sorted(maps.Keys(env))) {
		t.Errorf("%q for %v", list, env)
	}
}

func TestContainersOfOtherPodsStayAsTheyAre(t *testing.T) {
	l := newLab(t)
	l.hold("s")
	a, err := l.create(t, &api.PodSandbox{Id: "another"}, &api.Container{Env: []string{"PATH=/bin"}})
	if g := of(a); err != nil || len(g.env)+len(g.mounts)+len(g.memlock)+len(g.devices) > 0 {
		t.Errorf("%v, %+v", err, g)
	}
	if m := l.read(); m.Containers != 0 || m.Errors != 0 {
		t.Errorf("%+v", m)
	}
}

func TestErrorsKeepOnlyContainersFromStartingWhosePodSaysSo(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	for name, c := range map[string]struct {
		lookup  func(context.Context) error
		change  func(*lab, *publish.Publication)
		message string
		panics  uint64
		hangs   bool
		rest    bool // it gets what did not fail
	}{
		"ledger not read": {lookup: func(context.Context) error { return errors.New("the ledger is torn") }, message: "the ledger is torn"},
		"lookup hangs":    {hangs: true, lookup: func(context.Context) error { <-hang; return nil }, message: "rails took longer than"},
		"no document":     {change: func(_ *lab, told *publish.Publication) { told.Rails = nil }, message: "panic: ", panics: 1},
		"lookup panics":   {lookup: func(context.Context) error { panic("oh") }, message: "panic: oh", panics: 1},
		"device gone": {
			change:  func(l *lab, _ *publish.Publication) { _ = os.Remove(filepath.Join(l.root, theDevices[0])) },
			message: "char device " + theDevices[0], rest: true,
		},
		"device is a file": {
			change: func(l *lab, _ *publish.Publication) {
				path := filepath.Join(l.root, theDevices[0])
				_ = os.Remove(path)
				_ = os.WriteFile(path, nil, 0o600)
			},
			message: "is not a char device", rest: true,
		},
		"directory gone": {change: func(_ *lab, told *publish.Publication) { told.Dir += "x" }, message: "directory of the pod's files", rest: true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			told := l.hold("s")
			l.mu.Lock()
			l.lookup = c.lookup
			if c.hangs { // nothing is asked now
				l.lookupTime = lookupTime
			}
			l.mu.Unlock()
			if c.change != nil {
				c.change(l, told)
			}
			a, err := l.create(t, &api.PodSandbox{Id: "s"}, &api.Container{})
			if err != nil || (of(a).env["NCCL_IB_HCA"] != "") != c.rest {
				t.Errorf("%v, %+v", err, of(a))
			}
			if heard := strings.Join(l.heard(), "\n"); !strings.Contains(heard, c.message) || !strings.Contains(heard, "starts all the same") {
				t.Errorf("heard %q", heard)
			}
			pod := &api.PodSandbox{Id: "s", Annotations: map[string]string{railinfo.RequireAnnotation: "true"}}
			if _, err := l.create(t, pod, &api.Container{}); err == nil || !strings.Contains(err.Error(), c.message) {
				t.Errorf("a pod that requires all: %v", err)
			}
			if m := l.read(); m.Errors != 2 || m.Refused != 1 || l.reporter.Panics() != 2*c.panics || !m.Connected {
				t.Errorf("%+v", m)
			}
		})
	}
}

// TestLookupsThatHangAreBounded: lookups that hang must not use up one more goroutine with each
// started container.
func TestLookupsThatHangAreBounded(t *testing.T) {
	l := newLab(t)
	hang := make(chan struct{})
	l.mu.Lock()
	l.lookup = func(context.Context) error { <-hang; return nil }
	l.lookupTime = lookupTime
	l.mu.Unlock()
	var all sync.WaitGroup
	for range 2 * maxLookups {
		all.Go(func() {
			if _, err := l.Plugin.lookup(t.Context(), "s"); err == nil {
				t.Error("a lookup that hangs ended")
			}
		})
	}
	all.Wait()
	if n := len(l.slots); n != maxLookups {
		t.Errorf("%d lookups hang", n)
	}
	close(hang)
	await(t, "end of the lookups", func() bool { return len(l.slots) == 0 })
}

// runtimeEnv is a variable. If it is set, this process is a runtime with this NRI socket, which the
// test kills.
const runtimeEnv = "RAIL_CNI_TEST_NRI_RUNTIME"

func TestMain(m *testing.M) {
	if socket := os.Getenv(runtimeEnv); socket != "" {
		if _, err := fakeruntime.Start(socket, filepath.Dir(socket), patience); err != nil {
			panic(err)
		}
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestPluginIsBackWhenTheRuntimeIs(t *testing.T) {
	l := newPlugin(t)
	for range 3 {
		_ = os.Remove(l.Socket)
		runtime := exec.CommandContext(t.Context(), "/proc/self/exe")
		runtime.Env = []string{runtimeEnv + "=" + l.Socket}
		in, err := runtime.StdinPipe() // it ends with this process
		if err == nil {
			err = runtime.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		await(t, "connection", func() bool { return l.read().Connected })
		_ = runtime.Process.Kill()
		_ = runtime.Wait()
		_ = in.Close()
		await(t, "end of the connection", func() bool { return !l.read().Connected })
	}
	_ = os.Remove(l.Socket)
	l.runtime = startRuntime(t, l.Socket)
	l.hold("s")
	l.ready(t)
	if a, err := l.create(t, &api.PodSandbox{Id: "s"}, &api.Container{}); err != nil || of(a).env["NCCL_IB_HCA"] == "" {
		t.Errorf("%v, %+v", err, of(a))
	}
	if heard := l.heard(); len(heard) > 1 { // one of memlock, where the machine's limit is fixed
		t.Error(heard)
	}
}

// TestRuntimeThatDiesBeforeItConfiguresThePluginIsLeft: NRI's own stub would wait forever for such
// a runtime.
func TestRuntimeThatDiesBeforeItConfiguresThePluginIsLeft(t *testing.T) {
	socket := filepath.Join(scratch.Dir(t), "nri.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	registered := make(chan net.Conn, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		mux := multiplex.Multiplex(conn)
		accept, err := mux.Listen(multiplex.RuntimeServiceConn)
		if err != nil {
			return
		}
		server, err := ttrpc.NewServer()
		if err != nil {
			return
		}
		api.RegisterRuntimeService(server, registrar{conn, registered})
		_ = server.Serve(context.Background(), accept)
	}()
	p := New(Options{
		Socket: socket, Dirs: newDirs(t), Log: slog.New(slog.DiscardHandler),
		Lookup: func(context.Context, string) (*publish.Publication, error) { return nil, nil }, //nolint:nilnil // no rail
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Run(ctx)
	}()
	conn := <-registered
	time.Sleep(50 * time.Millisecond) // the answer is on its way
	_ = conn.Close()
	_ = listener.Close()
	startRuntime(t, socket)
	await(t, "connection to the next runtime", func() bool { return p.read().Connected })
	cancel()
	<-ended
}

func newDirs(t testing.TB) *notify.Dirs {
	dirs := notify.NewDirs(slog.New(slog.DiscardHandler))
	t.Cleanup(dirs.Close)
	return dirs
}

// registrar answers only the registration.
type registrar struct {
	conn net.Conn
	done chan<- net.Conn
}

func (r registrar) RegisterPlugin(context.Context, *api.RegisterPluginRequest) (*api.Empty, error) {
	r.done <- r.conn
	return &api.Empty{}, nil
}

func (registrar) UpdateContainers(context.Context, *api.UpdateContainersRequest) (*api.UpdateContainersResponse, error) {
	return nil, errors.New("nobody asks")
}

func TestPluginWithoutARuntimeSaysSoOnceAndEnds(t *testing.T) {
	var log bytes.Buffer
	p := New(Options{Socket: filepath.Join(t.TempDir(), "none", "nri.sock"), Log: slog.New(slog.NewTextHandler(&log, nil))})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	p.Run(ctx)
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "no NRI socket") {
		t.Errorf("it said %q", log.String())
	}
}

func TestMemlockIsWhatTheRuntimeCanGive(t *testing.T) {
	const (
		all     = "Name:\tcontainerd\nCapEff:\t000001ffffffffff\n"
		without = "Name:\tcontainerd\nCapEff:\t000001fffeffffff\n"
		limited = "Limit Soft Hard Units\nMax locked memory         65536                8388608              bytes     \nMax address space unlimited unlimited bytes\n"
		free    = "Limit Soft Hard Units\nMax locked memory         65536                unlimited            bytes     \n"
	)
	for name, c := range map[string]struct {
		status, limits string
		want           memlock
	}{
		"may lift limits": {all, limited, memlock(unlimited)},
		"may not":         {without, limited, 8 << 20},
		"need not":        {without, free, memlock(unlimited)},
		"not known":       {"", "", memlock(unlimited)},
	} {
		if got := memlockOf(c.status, c.limits); got != c.want {
			t.Errorf("%s: %d, not %d", name, got, c.want)
		}
	}
}
