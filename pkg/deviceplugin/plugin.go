package deviceplugin

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/deviceplugin/kubeletdir"
	"github.com/rail-cni/rail-cni/pkg/resource"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

const (
	// defaultInterval is the time between scans without a notice: a notice may be lost, and not
	// every change causes one.
	defaultInterval = 10 * time.Second
	// minScanPause is the least time between scans.
	minScanPause = 50 * time.Millisecond
	// maxRest bounds the rest after a scan. A scan may take long because it waits for the kubelet.
	maxRest = 2 * time.Second
	// The pause after a panic doubles from firstRest to lastRest. After the time goodRun without a
	// panic it is firstRest again.
	firstRest = 100 * time.Millisecond
	lastRest  = time.Minute
	goodRun   = 10 * time.Minute
)

// lentOutside is the reason why a NIC is unhealthy that is lent to a pod that did not get it from
// the kubelet.
const lentOutside = "it is lent outside the device plugin"

// Plugin is a node's device plugin. Its methods may be called concurrently.
type Plugin struct {
	Options
	instance string // part of the names of sockets
	reporter *component.Reporter
	wake     *component.Trigger

	// The following fields belong to the scan, which runs only once at a time.
	health   health
	seen     map[string]NIC // NICs in exclusive pools, by PCI address
	servers  map[string]*running
	config   *resource.Config
	rails    *resource.Rails
	problems map[resource.Problem]bool
	unread   string // what could not be read in the last scan

	cdiMu  sync.Mutex // held by writers of the CDI specification
	infoMu sync.Mutex // held while device information is written or removed

	mu          sync.Mutex
	inventory   *Inventory // inventory of the last scan
	pools       []resource.Pool
	cdi         bool
	ill         map[device]string // why devices are unhealthy
	states      map[[2]string]int // devices by resource and state
	reasons     map[[2]string]int // problems by resource and reason
	allocations map[[2]string]uint64
	cancel      context.CancelFunc // ends the current run

	others     *kubeletdir.Others
	containers *kubeletdir.PodResources
}

// running is a server that runs.
type running struct {
	*server
	stop context.CancelFunc
	done chan struct{}
}

// New returns a device plugin that does nothing until [Plugin.Run] is called.
func New(o Options) *Plugin {
	if o.Interval == 0 {
		o.Interval = defaultInterval
	}
	if o.Changed == nil {
		o.Changed = component.NewTrigger()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	id := make([]byte, 4)
	_, _ = rand.Read(id) // it never fails
	return &Plugin{
		Options: o, instance: hex.EncodeToString(id), reporter: component.NewReporter("device-plugin", o.Log, o.Notify), wake: o.Changed,
		health: health{nics: map[string]*nicHealth{}, outside: map[device]*outside{}},
		seen:   map[string]NIC{}, servers: map[string]*running{}, problems: map[resource.Problem]bool{},
		ill: map[device]string{}, states: map[[2]string]int{}, reasons: map[[2]string]int{},
		allocations: map[[2]string]uint64{},
		others:      kubeletdir.NewOthers(o.KubeletDir), containers: kubeletdir.NewPodResources(o.KubeletDir),
	}
}

// Run serves the node's pools until ctx ends, and then removes the sockets. After a panic it begins
// again. It returns when everything that it has started has ended.
func (p *Plugin) Run(ctx context.Context) {
	for pause := (component.Backoff{First: firstRest, Last: lastRest}); ctx.Err() == nil; _ = wait.For(ctx, pause.Next()) {
		began := time.Now()
		p.once(ctx)
		if time.Since(began) > goodRun {
			pause.Reset()
		}
	}
}

// once runs until ctx ends or something panics.
func (p *Plugin) once(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer p.containers.Disconnect()
	defer p.stopServers(func(string) bool { return true })
	defer cancel()
	p.mu.Lock()
	p.cancel = cancel
	p.mu.Unlock()
	p.contained(func() {
		p.removeStale()
		sockets := p.Dirs.Subscribe(func() { p.contained(p.kubeletChanged) })
		defer sockets.Close()
		loop := component.Loop{Reporter: p.reporter, Trigger: p.wake, Settle: minScanPause, MaxRest: maxRest, Do: func(ctx context.Context) time.Time {
			sockets.Watch(filepath.Join(p.KubeletDir, kubeletdir.PluginsDir))
			sockets.Watch(filepath.Join(p.KubeletDir, kubeletdir.RegistryDir))
			now := p.Now()
			next := p.scan(ctx) // after a panic the servers continue with what they have
			return time.Now().Add(max(minScanPause, min(p.Interval, next.Sub(now))))
		}}
		loop.Run(ctx)
	})
}

// kubeletChanged wakes the servers, because a socket in the kubelet's directories may have been
// made or removed.
func (p *Plugin) kubeletChanged() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.servers {
		s.wake.Fire()
	}
}

// contain runs f in a goroutine of all. If f panics, the current run ends.
func (p *Plugin) contain(all *sync.WaitGroup, f func()) {
	all.Go(func() { p.contained(f) })
}

// contained calls f. If f panics, the current run ends.
func (p *Plugin) contained(f func()) {
	if p.reporter.Contain(func() error { f(); return nil }) != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.cancel()
	}
}

func (p *Plugin) containUnary(ctx context.Context, r any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	answer, err := component.Value(p.reporter, func() (any, error) { return handle(ctx, r) })
	return answer, statusOf(err)
}

func (p *Plugin) containStream(s any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	return statusOf(p.reporter.Contain(func() error { return handle(s, stream) }))
}

// removeStale removes sockets that a killed instance left. A socket that answers belongs to another
// agent, which will end soon: a rolling update may start the new agent first.
func (p *Plugin) removeStale() {
	for _, dir := range []string{kubeletdir.PluginsDir, kubeletdir.RegistryDir} {
		entries, _ := os.ReadDir(filepath.Join(p.KubeletDir, dir)) // without the directory there are none
		for _, e := range entries {
			path := filepath.Join(p.KubeletDir, dir, e.Name())
			if e.Type()&os.ModeSocket == 0 || !resource.IsOwnSocket(e.Name()) || strings.Contains(e.Name(), p.instance) || kubeletdir.Answers(path) {
				continue
			}
			if err := removeFile(path); err != nil {
				p.Log.Warn("cannot remove a stale socket", "socket", path, "err", err)
			}
		}
	}
}

// startServer starts a server for the pool.
func (p *Plugin) startServer(ctx context.Context, s *server) {
	ctx, stop := context.WithCancel(ctx)
	r := &running{server: s, stop: stop, done: make(chan struct{})}
	p.mu.Lock()
	p.servers[s.resource] = r
	p.mu.Unlock()
	go func() {
		defer close(r.done)
		p.contained(func() { s.run(ctx) })
	}()
}

// stopServers ends the servers of the resources for which end returns true.
func (p *Plugin) stopServers(end func(resource string) bool) {
	var ended []*running
	p.mu.Lock()
	for name, r := range p.servers {
		if end(name) {
			r.stop()
			ended = append(ended, r)
			delete(p.servers, name)
		}
	}
	p.mu.Unlock()
	for _, r := range ended {
		<-r.done
	}
}
