package nvipam

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/nodeprefix"
)

// faulty is an API server without pools, with faults that a real one seldom has.
type faulty struct {
	watch func(w http.ResponseWriter, r *http.Request) // answers a watch; nil: it lasts

	mu      sync.Mutex
	lists   []string // the resource version of each list
	watches int
}

func (f *faulty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	f.mu.Lock()
	query := r.URL.Query()
	if query.Get("watch") == "" {
		f.lists = append(f.lists, query.Get("resourceVersion"))
		_, _ = fmt.Fprint(w, `{"kind":"CIDRPoolList","metadata":{"resourceVersion":"7"},"items":[]}`)
		f.mu.Unlock()
		return
	}
	f.watches++
	f.mu.Unlock()
	f.watch(w, r)
}

// seen returns the resource versions of the lists, and the number of watches.
func (f *faulty) seen() (lists string, watches int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.lists, ","), f.watches
}

// run runs a keeper with the server for at most a time, or until done returns true.
func (f *faulty) run(t *testing.T, most time.Duration, done func() bool) {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"clusters":[{"name":"c","cluster":{"server":%q}}],"users":[{"name":"u","user":{}}]}`, server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := kube.Open(kube.Config{Kubeconfig: kubeconfig})
	if err != nil {
		t.Fatal(err)
	}
	k := NewKeeper(Options{
		StateDirs: []string{filepath.Join(t.TempDir(), "state")}, Node: "node2", Client: client, Log: slog.New(slog.DiscardHandler),
		Wanted: func() (bool, error) { return true, nil },
		Tell:   func(n component.Notice) { t.Errorf("it says %s", n.Message) },
	})
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	ended := make(chan struct{})
	go func() { defer close(ended); k.Run(ctx) }()
	for ctx.Err() == nil && !done() {
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	<-ended
}

func TestWatchesThatEndAtOnceAreFollowedByAPause(t *testing.T) {
	f := &faulty{watch: func(http.ResponseWriter, *http.Request) {}}
	f.run(t, 4*time.Second, func() bool { return false })
	if lists, watches := f.seen(); lists != "0" || watches < 2 || watches > 4 { // after 0, 1 to 2, and 3 to 6 seconds
		t.Errorf("lists %s, %d watches", lists, watches)
	}
}

func TestVersionThatTheServerHasForgottenTwiceIsReadAnew(t *testing.T) {
	f := &faulty{}
	f.watch = func(w http.ResponseWriter, r *http.Request) {
		if lists, _ := f.seen(); !strings.HasSuffix(lists, ",") {
			w.WriteHeader(http.StatusGone)
			_, _ = fmt.Fprint(w, `{"kind":"Status","reason":"Expired","message":"too old","code":410}`)
			return
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	f.run(t, time.Minute, func() bool { _, watches := f.seen(); return watches == 3 })
	if lists, watches := f.seen(); lists != "0,0," || watches != 3 {
		t.Errorf("lists %s, %d watches", lists, watches)
	}
}

func TestPoolsAreListedIfWatchesEndAtOnceForEver(t *testing.T) {
	k, _ := keeperOf("", "10.0.4.8/31")
	for ended := 1; ended < 6; ended++ {
		if err := k.judge(nil, 0); err != nil || (k.pools == nil) != (ended > patientFor) {
			t.Errorf("after %d: %v, pools %v", ended, err, k.pools)
		}
	}
}

func TestPauseGrowsToALook(t *testing.T) {
	if p := pauseAfter(0); p != 0 {
		t.Errorf("%s after none", p)
	}
	for ended := 1; ended < 100; ended++ {
		if p := pauseAfter(ended); p < time.Second || p > look || ended > 5 && p < look/2 {
			t.Errorf("%s after %d", p, ended)
		}
	}
}

// keeperOf returns a keeper with one pool of the prefix, and the messages that it tells.
func keeperOf(stateDir, prefix string) (*Keeper, *[]string) {
	var told []string
	k := NewKeeper(Options{
		StateDirs: []string{stateDir}, Node: "node2", Log: slog.New(slog.DiscardHandler),
		Tell: func(n component.Notice) { told = append(told, n.Message) },
	})
	k.pools = map[string]nodeprefix.Pool{"nv/rail-0": {Name: "rail-0", Namespace: "nv", Prefix: prefix}}
	return k, &told
}

func TestUnavailableServerIsReportedOnceAndAfterAWhile(t *testing.T) {
	k, told := keeperOf("", "10.0.4.8/31")
	broken := func(port int) error {
		return &kube.Error{Err: fmt.Errorf("read from port %d: reset", port), Tries: port}
	}
	for range 3 {
		if err := k.judge(broken(1), time.Minute); err != nil || k.pools == nil || k.ended != 1 {
			t.Errorf("%v, pools %v, %d", err, k.pools, k.ended)
		}
	}
	for port := range 3 {
		k.failing = time.Now().Add(-2 * patience)
		err := k.judge(broken(port), 0)
		if err == nil || k.pools == nil {
			t.Errorf("%v, pools %v", err, k.pools)
		}
		k.report(err)
	}
	if len(*told) != 1 {
		t.Errorf("it says %q", *told)
	}
	if err := k.judge(nil, time.Minute); err != nil || k.ended != 0 || !k.failing.IsZero() || k.told != "" {
		t.Errorf("%v: %+v", err, k)
	}
	// Another failure is reported at once, and the pools are read again.
	if err := k.judge(&kube.Error{Status: 403}, 0); err == nil || k.pools != nil {
		t.Errorf("%v, pools %v", err, k.pools)
	}
}

// put records an attachment with the address.
func put(t *testing.T, stateDir, container, address string) {
	t.Helper()
	l, err := ledger.Open(stateDir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Put(&ledger.Record{Key: ledger.Key{ContainerID: container, IfName: "net1"}, Network: "rail", Plugin: "host-device", Phase: ledger.Lent, Addresses: []string{address}, Child: &ledger.Child{}}); err != nil {
		t.Fatal(err)
	}
}

func TestPodsWhoseADDHadReadTheFormerPrefixAreReportedLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	k, told := keeperOf(dir, "10.0.4.8/30")
	write := func(prefix string) {
		t.Helper()
		k.pools["nv/rail-0"] = nodeprefix.Pool{Name: "rail-0", Namespace: "nv", Prefix: prefix}
		if err := k.write(); err != nil {
			t.Fatal(err)
		}
	}
	write("10.0.4.8/30")
	put(t, dir, "c1", "10.0.4.9/30")
	write("10.0.5.8/30")
	if len(*told) != 1 || !strings.Contains((*told)[0], "10.0.4.9 of container c1") {
		t.Fatalf("it says %q", *told)
	}
	put(t, dir, "c2", "10.0.4.10/30")
	for range 2 {
		k.lookAgain()
	}
	if len(*told) != 2 || !strings.Contains((*told)[1], "10.0.4.10 of container c2") {
		t.Errorf("it says %q", *told)
	}
	write("10.0.4.8/30")
	k.lookAgain()
	write("10.0.5.8/30")
	k.lookAgain() // says the same, once
	if len(*told) != 3 {
		t.Errorf("it says %q", *told)
	}
}

func TestMoveIsReportedWhenTheFileIsWritten(t *testing.T) {
	need.Root(t) // to mount
	dir := filepath.Join(t.TempDir(), "state")
	k, told := keeperOf(dir, "10.0.4.8/30")
	if err := k.write(); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "c1", "10.0.4.9/30")
	prefixes := filepath.Join(dir, "prefixes")
	if err := errors.Join(unix.Mount(prefixes, prefixes, "", unix.MS_BIND, ""), unix.Mount("", prefixes, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")); err != nil {
		t.Fatal(err)
	}
	unmount := sync.OnceValue(func() error { return unix.Unmount(prefixes, unix.MNT_DETACH) })
	defer func() { _ = unmount() }()
	k.pools["nv/rail-0"] = nodeprefix.Pool{Name: "rail-0", Namespace: "nv", Prefix: "10.0.5.8/30"}
	if err := k.write(); !errors.Is(err, unix.EROFS) || len(*told) > 0 {
		t.Errorf("%v, and it says %q", err, *told)
	}
	if err := unmount(); err != nil {
		t.Fatal(err)
	}
	if err := k.write(); err != nil || len(*told) != 1 {
		t.Errorf("%v, and it says %q", err, *told)
	}
}
