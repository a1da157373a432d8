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
	"github.com/rail-cni/rail-cni/pkg/resource"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

const (
	// defaultInterval is the time between scans without a notice: one may be lost, and
	// not all changes have one.
	defaultInterval = 10 * time.Second
	// minScanPause is the least time between scans.
	minScanPause = 50 * time.Millisecond
	// maxRest bounds the rest after a scan, which may have waited for the kubelet.
	maxRest = 2 * time.Second
	// listTime bounds a call of PodResources.
	listTime = 2 * time.Second
	// The pause after a panic doubles from firstRest to lastRest. It begins anew after a
	// time of goodRun without one.
	firstRest = 100 * time.Millisecond
	lastRest  = time.Minute
	goodRun   = 10 * time.Minute
)

// lentOutside is why a NIC is unhealthy that is lent to a pod that did not get it from
// the kubelet.
const lentOutside = "it is lent outside the device plugin"

// Plugin is a node's device plugin. Its methods may be called concurrently.
type Plugin struct {
	Options
	instance string // in the names of sockets
	reporter *component.Reporter
	wake     *component.Trigger

	// Of the scan, which runs once at a time.
	health   health
	seen     map[string]NIC // in exclusive pools, by PCI address
	servers  map[string]*running
	config   *resource.Config
	rails    *resource.Rails
	problems map[resource.Problem]bool
	unread   string // what could not be read in the last scan

	cdiMu  sync.Mutex // writers of the CDI specification
	infoMu sync.Mutex // writers and removers of device information

	mu          sync.Mutex
	inventory   *Inventory // of the last scan
	pools       []resource.Pool
	cdi         bool
	ill         map[device]string // why devices are unhealthy
	states      map[[2]string]int // devices by resource and state
	reasons     map[[2]string]int // problems by resource and reason
	allocations map[[2]string]uint64
	cancel      context.CancelFunc // ends the run under way
	others      map[socketFile]*other

	kubeletMu sync.Mutex
	conn      *grpc.ClientConn // to PodResources
}

// running is a server that runs.
type running struct {
	*server
	stop context.CancelFunc
	done chan struct{}
}

// New returns a device plugin, which does nothing until [Plugin.Run] runs.
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
		allocations: map[[2]string]uint64{}, others: map[socketFile]*other{},
	}
}

// Run serves the node's pools until ctx ends, and removes the sockets. After a panic it
// begins again. It returns when all that it began has ended.
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
	defer p.disconnect()
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
			sockets.Watch(filepath.Join(p.KubeletDir, pluginsDir))
			sockets.Watch(filepath.Join(p.KubeletDir, registryDir))
			now := p.Now()
			next := p.scan(ctx) // after a panic the servers go on with what they have
			return time.Now().Add(max(minScanPause, min(p.Interval, next.Sub(now))))
		}}
		loop.Run(ctx)
	})
}

// kubeletChanged wakes the servers: a socket in the kubelet's directories may have come or
// gone.
func (p *Plugin) kubeletChanged() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.servers {
		s.wake.Fire()
	}
}

// contain runs f in all. If it panics the run under way ends.
func (p *Plugin) contain(all *sync.WaitGroup, f func()) {
	all.Go(func() { p.contained(f) })
}

// contained calls f. If it panics the run under way ends.
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

// containers returns what the kubelet has given to containers.
func (p *Plugin) containers(ctx context.Context) ([]container, error) {
	conn, err := p.podResources()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	list, err := podContainers(ctx, conn)
	if err != nil {
		p.disconnect() // a connection that failed is tried again only after a pause
	}
	return list, err
}

// podResources returns the connection to PodResources, which begins to connect if it is
// not connected: the kubelet waits for calls that need it.
func (p *Plugin) podResources() (*grpc.ClientConn, error) {
	p.kubeletMu.Lock()
	defer p.kubeletMu.Unlock()
	if p.conn == nil {
		var err error
		if p.conn, err = connect(filepath.Join(p.KubeletDir, resourcesSocket), grpc.WithDefaultServiceConfig(retryLists), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxList))); err != nil {
			return nil, err
		}
	}
	p.conn.Connect()
	return p.conn, nil
}

// disconnect ends the connection to PodResources. The next call connects.
func (p *Plugin) disconnect() {
	p.kubeletMu.Lock()
	defer p.kubeletMu.Unlock()
	if p.conn != nil {
		_ = p.conn.Close()
		p.conn = nil
	}
}

// removeStale removes sockets that a killed instance left. A socket that answers is that
// of another agent, which ends soon: a rolling update may start the new one first.
func (p *Plugin) removeStale() {
	for _, dir := range []string{pluginsDir, registryDir} {
		entries, _ := os.ReadDir(filepath.Join(p.KubeletDir, dir)) // without the directory there are none
		for _, e := range entries {
			path := filepath.Join(p.KubeletDir, dir, e.Name())
			if e.Type()&os.ModeSocket == 0 || !resource.IsOwnSocket(e.Name()) || strings.Contains(e.Name(), p.instance) || answers(path) {
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

// stopServers ends the servers of the resources for which end is true.
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
