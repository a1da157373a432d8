package publish

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
)

// pods is an API server that accepts patches of pods, and answers with the code that
// status returns.
type pods struct {
	mu      sync.Mutex
	patches []string // path and body
	status  func(n int) int
}

func (p *pods) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.patches = append(p.patches, r.Method+" "+r.URL.Path+" "+string(body))
	status := p.status(len(p.patches))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	reason := map[int]string{http.StatusNotFound: "NotFound", http.StatusConflict: "Conflict", http.StatusForbidden: "Forbidden"}[status]
	fmt.Fprintf(w, `{"kind": "Status", "apiVersion": "v1", "code": %d, "reason": %q, "message": "no"}`, status, reason)
}

func (p *pods) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.patches...)
}

// annotated returns a lab whose keeper writes annotations to the server.
func annotated(t *testing.T, status func(n int) int) (*lab, *pods) {
	t.Helper()
	l, server := newLab(t), &pods{status: status}
	s := httptest.NewServer(server)
	t.Cleanup(s.Close)
	config := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"clusters": [{"name": "c", "cluster": {"server": %q}}], "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}], "current-context": "x"}`, s.URL)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if l.keeper.Client, err = kube.Open(kube.Config{Kubeconfig: config}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(file, []byte("publish: {annotation: true}"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("RAIL_CNI_NODE_FILE", file)
	return l, server
}

// Several ADDs of a pod cause one request. An ADD that changes nothing causes none.
func TestAnnotationIsWrittenOnce(t *testing.T) {
	l, server := annotated(t, func(int) int { return http.StatusOK })
	l.run()
	pod, r := l.pod("c1", uid, "10.3.0.17/16")
	l.put(r)
	l.await("the files come", func() bool { return l.rails(uid) != nil })
	second := *r
	second.IfName = "net0"
	l.put(&second)
	l.await("the annotation comes", func() bool { return len(server.all()) > 0 })
	time.Sleep(2 * coalesce)
	all := server.all()
	if len(all) != 1 {
		t.Fatalf("requests: %q", all)
	}
	path, body, _ := strings.Cut(strings.TrimPrefix(all[0], "PATCH "), " ")
	var patch struct {
		Metadata kube.Meta `json:"metadata"`
	}
	if err := json.Unmarshal([]byte(body), &patch); err != nil || path != "/api/v1/namespaces/default/pods/pod-c1" || patch.Metadata.UID != uid {
		t.Errorf("%v: %s", err, all[0])
	}
	var rails railinfo.Rails
	if err := json.Unmarshal([]byte(patch.Metadata.Annotations[railinfo.RailsAnnotation]), &rails); err != nil || len(rails.Rails) != 2 {
		t.Errorf("%v: %s", err, all[0])
	}
	pod.IP("addr", "add", "10.3.0.99/16", "dev", "net1")
	if _, err := l.keeper.Lookup(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	l.keeper.allDue()
	l.keeper.buildDue(t.Context())
	l.await("the annotation follows", func() bool { return len(server.all()) == 2 })
}

// A server that refuses the request does not prevent the files from being written, and is asked
// again.
func TestAnnotationIsTriedAgain(t *testing.T) {
	l, server := annotated(t, func(n int) int {
		if n == 1 {
			return http.StatusForbidden
		}
		return http.StatusOK
	})
	l.run()
	_, r := l.pod("c1", uid, "10.3.0.17/16")
	l.put(r)
	l.await("it is asked again", func() bool { return len(server.all()) == 2 })
	if l.keeper.annotator.failures() != 1 || l.rails(uid) == nil {
		t.Errorf("%d failures", l.keeper.annotator.failures())
	}
}

// A pod that is gone is left alone. So is another pod with the same name (409 because of the UID).
func TestAnnotationOfAPodThatIsGone(t *testing.T) {
	for _, status := range []int{http.StatusNotFound, http.StatusConflict} {
		l, server := annotated(t, func(int) int { return status })
		l.run()
		_, r := l.pod("c1", uid, "10.3.0.17/16")
		l.put(r)
		l.await("it is asked", func() bool { return len(server.all()) == 1 })
		time.Sleep(firstRetry + coalesce)
		if n := len(server.all()); n != 1 {
			t.Errorf("%d: %d requests", status, n)
		}
		if l.keeper.annotator.failures() != 0 {
			t.Errorf("%d: %d failures", status, l.keeper.annotator.failures())
		}
	}
}

// A pod that changes its addresses all the time causes fewer and fewer requests.
func TestAnnotationThatChangesAllTheTime(t *testing.T) {
	a := newAnnotator(NewKeeper(Options{}))
	a.Client = &kube.Client{}
	var gaps []time.Duration
	for i := range 9 {
		a.want(uid, &railinfo.Rails{Pod: railinfo.PodRef{UID: uid, Namespace: "default", Name: "web-0", Node: strings.Repeat("x", i)}})
		n := a.pods[uid]
		gaps = append(gaps, time.Until(n.next).Round(time.Second))
		a.begin(n)
		a.done(n, 0)
	}
	want := []time.Duration{1, 1, 2, 4, 8, 16, 32, 60, 60}
	for i, gap := range gaps {
		if gap != want[i]*time.Second {
			t.Fatalf("got %v, want %v", gaps, want)
		}
	}
	a.pods[uid].wrote = time.Now().Add(-2 * calm)
	a.want(uid, &railinfo.Rails{Pod: railinfo.PodRef{UID: uid, Namespace: "default", Name: "web-0"}})
	if gap := time.Until(a.pods[uid].next).Round(time.Second); gap != coalesce {
		t.Errorf("after a while: %v", gap)
	}
}
