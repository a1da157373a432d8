package controlplane

import (
	"context"
	"crypto/x509"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// pools is the collection that most tests use.
const pools = "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/default/ippools"

func pool(name string) map[string]any {
	return map[string]any{
		"apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"range": "10.0.0.0/24", "allocations": map[string]any{}},
	}
}

// want fails the test unless the answer has the code.
func want(t *testing.T, code int) func(got int, answer []byte, err error) []byte {
	t.Helper()
	return func(got int, answer []byte, err error) []byte {
		t.Helper()
		if err != nil || got != code {
			t.Fatalf("want %d, got %d (%v): %s", code, got, err, answer)
		}
		return answer
	}
}

// eventually waits until holds returns true: the server works asynchronously.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// shared is the plane of all tests of the package that do not kill it for good.
// They run one after another, and each leaves it running.
var shared *Plane

const (
	dieEnv  = "RAIL_CNI_CONTROLPLANE_TEST_DIE" // the process is the child of TestDiesWithTheProcess
	allowed = 30 * time.Second                 // for a start
)

var startTook time.Duration

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := scratch.MkdirTemp("controlplane")
		if err == nil {
			defer scratch.Remove(dir)
			began := time.Now()
			shared, err = New(context.Background(), dir, Options{Audit: true})
			startTook = time.Since(began)
		}
		if err != nil {
			return need.Main(err)
		}
		defer shared.Close()
		if os.Getenv(dieEnv) != "" {
			fmt.Println(shared.etcd.Pid(), shared.apiserver.Pid())
			select {} // until it is killed
		}
		return m.Run()
	}())
}

func TestStartsWithinHalfAMinute(t *testing.T) {
	t.Logf("the control plane was ready after %s", startTook.Round(10*time.Millisecond))
	if startTook > allowed {
		t.Errorf("starting took %s, want at most %s", startTook, allowed)
	}
	etcd, apiserver, err := shared.Versions(t.Context())
	want := [2]string{builtFrom(t, shared.binaries.etcd, "go.etcd.io/etcd/server/v3"), builtFrom(t, shared.binaries.apiserver, "k8s.io/kubernetes")}
	if err != nil || "v"+etcd != want[0] || apiserver != want[1] {
		t.Errorf("etcd %q, kube-apiserver %q, %v; they are built from %v", etcd, apiserver, err, want)
	}
	t.Logf("etcd %s, kube-apiserver %s", etcd, apiserver)
}

// builtFrom returns the version of the module that a program belongs to.
func builtFrom(t *testing.T, program, module string) string {
	t.Helper()
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if info.Main.Path != module {
		t.Fatalf("%s belongs to %s, not to %s", program, info.Main.Path, module)
	}
	return info.Main.Version
}

func TestCRDsAreEstablishedAndKeepWhatWhereaboutsWrites(t *testing.T) {
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Status   struct {
				Conditions []struct{ Type, Status string }
			}
		}
	}
	answer := want(t, 200)(shared.Admin().Get(t.Context(), "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"))
	if err := json.Unmarshal(answer, &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 4 {
		t.Errorf("%d CRDs, want 4", len(list.Items))
	}
	for _, crd := range list.Items {
		is := map[string]string{}
		for _, c := range crd.Status.Conditions {
			is[c.Type] = c.Status
		}
		if is["Established"] != "True" || is["NamesAccepted"] != "True" || is["NonStructuralSchema"] == "True" {
			t.Errorf("%s: %v", crd.Metadata.Name, is)
		}
	}

	const group = "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/default/"
	for _, test := range []struct {
		plural, object string
		code           int
	}{
		{"ippools", `{"kind":"IPPool","spec":{"range":"10.1.0.0/24","allocations":{"7":{"id":"c","podref":"ns/p","ifname":"net1"}}}}`, 201},
		{"ippools", `{"kind":"IPPool","spec":{"range":"10.1.0.0/24","allocations":{"7":{"id":"c","podref":"ns/p"}}}}`, 201},
		{"ippools", `{"kind":"IPPool","spec":{"range":"10.1.0.0/24","allocations":{"7":{"id":"c"}}}}`, 422},
		{"ippools", `{"kind":"IPPool","spec":{"range":"10.1.0.0/24"}}`, 422},
		{"overlappingrangeipreservations", `{"kind":"OverlappingRangeIPReservation","spec":{"podref":"ns/p"}}`, 201},
		{"overlappingrangeipreservations", `{"kind":"OverlappingRangeIPReservation","spec":{"containerid":"c","podref":"ns/p","ifname":"net1"}}`, 201},
		{"overlappingrangeipreservations", `{"kind":"OverlappingRangeIPReservation","spec":{"containerid":"c"}}`, 422},
		{"nodeslicepools", `{"kind":"NodeSlicePool","spec":{"range":"10.0.0.0/16","sliceSize":"/26"},"status":{"allocations":[{"nodeName":"n","sliceRange":"10.0.0.0/26"}]}}`, 201},
	} {
		var sent, kept map[string]any
		if err := json.Unmarshal([]byte(test.object), &sent); err != nil {
			t.Fatal(err)
		}
		sent["apiVersion"] = "whereabouts.cni.cncf.io/v1alpha1"
		sent["metadata"] = map[string]any{"generateName": "kept-"}
		answer := want(t, test.code)(shared.Admin().Create(t.Context(), group+test.plural, sent))
		if err := json.Unmarshal(answer, &kept); err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"spec", "status"} {
			if test.code == 201 && fmt.Sprint(sent[part]) != fmt.Sprint(kept[part]) {
				t.Errorf("%s: %s became %v", test.object, part, kept[part])
			}
		}
	}
}

func TestKilledAPIServerRefusesAndComesBackUnderItsAddress(t *testing.T) {
	ctx := t.Context()
	want(t, 201)(shared.Admin().Create(ctx, pools, pool("survivor")))
	server := shared.Server()
	for range 2 {
		shared.KillAPIServer()
		if _, err := net.Dial("tcp", shared.address); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dialing a killed server: %v, want ECONNREFUSED", err)
		}
		if err := shared.WaitReady(ctx); err == nil {
			t.Error("a killed server is ready")
		}
		if err := shared.StartAPIServer(ctx); err != nil {
			t.Fatal(err)
		}
		want(t, 200)(shared.Admin().Get(ctx, pools+"/survivor"))
	}
	if err := shared.RestartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	if server != shared.Server() {
		t.Errorf("the server moved from %s to %s", server, shared.Server())
	}
}

func TestKilledEtcdTakesTheAPIAlongAndKeepsItsData(t *testing.T) {
	ctx := t.Context()
	want(t, 201)(shared.Admin().Create(ctx, pools, pool("kept")))
	shared.KillEtcd()
	within, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if code, answer, err := shared.Admin().Create(within, pools, pool("lost")); err == nil && code == 201 {
		t.Errorf("without etcd: %d %s", code, answer)
	}
	if err := shared.PauseEtcd(); err == nil {
		t.Error("a killed etcd can be paused")
	}
	if err := shared.StartEtcd(ctx); err != nil {
		t.Fatal(err)
	}
	if err := shared.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pool can be read again", func() bool {
		code, _, err := shared.Admin().Get(ctx, pools+"/kept")
		return err == nil && code == 200
	})
}

func TestPausedEtcdHoldsWritesUntilItResumes(t *testing.T) {
	ctx := t.Context()
	if err := shared.PauseEtcd(); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		code int
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		code, _, err := shared.Admin().Create(ctx, pools, pool("held"))
		answers <- answer{code, err}
	}()
	select {
	case a := <-answers:
		t.Errorf("a write was answered while etcd was paused: %v", a)
	case <-time.After(time.Second):
	}
	if err := shared.ResumeEtcd(); err != nil {
		t.Fatal(err)
	}
	if a := <-answers; a.err != nil || a.code != 201 {
		t.Errorf("after the pause: %v", a)
	}
}

func TestServiceAccountTokenIsKnownUntilTheAccountIsDeleted(t *testing.T) {
	ctx := t.Context()
	c, err := shared.ServiceAccount(ctx, "kube-system", "short-lived")
	if err != nil {
		t.Fatal(err)
	}
	client, err := shared.Client(c)
	if err != nil {
		t.Fatal(err)
	}
	forbidden := want(t, 403)(client.Get(ctx, pools))
	if !strings.Contains(string(forbidden), "system:serviceaccount:kube-system:short-lived") {
		t.Errorf("refused as somebody else: %s", forbidden)
	}
	want(t, 200)(shared.Admin().Delete(ctx, "/api/v1/namespaces/kube-system/serviceaccounts/short-lived"))
	eventually(t, "a token without an account is refused", func() bool {
		code, _, err := client.Get(ctx, pools)
		return err == nil && code == http.StatusUnauthorized
	})
	anonymous, err := shared.Client(Credential{Token: "made-up"})
	if err != nil {
		t.Fatal(err)
	}
	want(t, 401)(anonymous.Get(ctx, pools))
}

func TestAWatchTellsOfWhatIsThereAndOfEachChange(t *testing.T) {
	admin := shared.Admin()
	want(t, 201)(admin.Create(t.Context(), pools, pool("there")))
	var told []string
	err := admin.Watch(t.Context(), pools+"?fieldSelector=metadata.name%3Dthere", func(kind string, object json.RawMessage) bool {
		var o struct{ Metadata struct{ Name string } }
		if err := json.Unmarshal(object, &o); err != nil {
			t.Error(err)
		}
		told = append(told, kind+" "+o.Metadata.Name)
		if kind == "ADDED" {
			want(t, 200)(admin.Delete(t.Context(), pools+"/there"))
		}
		return kind != "DELETED"
	})
	if got := strings.Join(told, ", "); err != nil || got != "ADDED there, DELETED there" {
		t.Errorf("%s (%v)", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := admin.Watch(ctx, pools, func(string, json.RawMessage) bool { return true }); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	if err := admin.Watch(t.Context(), pools+"-of-nobody", func(string, json.RawMessage) bool { return true }); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("of what is not there: %v", err)
	}
}

func TestRotatedCAIsTrustedOnlyByThoseWhoKnowIt(t *testing.T) {
	ctx, before := t.Context(), shared.Admin()
	c, err := shared.CertificateFor("old-timer", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	if err := shared.RotateCA(ctx); err != nil {
		t.Fatal(err)
	}
	var unknown x509.UnknownAuthorityError
	if _, _, err := before.Get(ctx, pools); !errors.As(err, &unknown) {
		t.Errorf("by the old CA: %v, want an unknown authority", err)
	}
	want(t, 200)(shared.Admin().Get(ctx, pools))
	renewed, err := shared.Client(c)
	if err != nil {
		t.Fatal(err)
	}
	want(t, 200)(renewed.Get(ctx, pools))
}

func TestAuditCountsEachRequestOnceWithItsCode(t *testing.T) {
	ctx, since := t.Context(), time.Now()
	c, err := shared.CertificateFor("counted", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	client, err := shared.Client(c)
	if err != nil {
		t.Fatal(err)
	}
	want(t, 201)(client.Create(ctx, pools, pool("audited")))
	want(t, 409)(client.Create(ctx, pools, pool("audited")))
	claim := `[{"op":"test","path":"/spec/allocations/1","value":null},
		{"op":"add","path":"/spec/allocations/1","value":{"id":"c","podref":"ns/p","ifname":"net1"}}]`
	want(t, 200)(client.Patch(ctx, pools+"/audited", JSONPatch, []byte(claim)))
	want(t, 422)(client.Patch(ctx, pools+"/audited", JSONPatch, []byte(claim)))
	want(t, 200)(client.Get(ctx, pools))
	want(t, 200)(client.Delete(ctx, pools+"/audited"))

	requests, err := shared.Requests(ctx, since)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range requests {
		if r.User != "counted" {
			continue
		}
		got = append(got, fmt.Sprint(r.Verb, " ", r.Resource, " ", r.Name, " ", r.Code))
		if r.Latency <= 0 || r.Namespace != "default" || r.UserAgent != "rail-cni-controlplane" || r.Received.Before(since) {
			t.Errorf("%+v", r)
		}
	}
	expected := []string{
		"create ippools audited 201", "create ippools audited 409", "patch ippools audited 200",
		"patch ippools audited 422", "list ippools  200", "delete ippools audited 200",
	}
	if strings.Join(got, "\n") != strings.Join(expected, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(expected, "\n"))
	}
	if tally := Tally(requests); tally["patch ippools"] != 2 || tally["create ippools"] != 2 {
		t.Errorf("tally %v", tally)
	}
}

func TestReachAnswersInAnotherNetnsAndRefusesWhileTheServerIsDown(t *testing.T) {
	n := testnet.NewNetns(t, "reach")
	dial := func() (conn net.Conn, err error) {
		return conn, errors.Join(err, n.Do(func() (err error) {
			conn, err = net.Dial("tcp", shared.address)
			return err
		}))
	}
	refused := func(when string) {
		t.Helper()
		if _, err := dial(); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v, want ECONNREFUSED", when, err)
		}
	}
	// ask sends one request over a connection that was made in the namespace.
	ask := func() error {
		conn, err := dial()
		if err != nil {
			return err
		}
		c := *shared.Admin()
		transport, ok := c.http.Transport.(*http.Transport)
		if !ok {
			return errors.New("not the usual transport")
		}
		transport = transport.Clone()
		transport.DisableKeepAlives = true
		transport.DialContext = func(context.Context, string, string) (net.Conn, error) { return conn, nil }
		c.http.Transport = transport
		return c.into(t.Context(), nil, http.MethodGet, "/readyz", "", nil)
	}

	refused("before")
	sent, received := shared.Traffic()
	stop, err := shared.Reach("/run/netns/" + n.Name)
	if err != nil {
		t.Fatal(err)
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the bytes of the request are counted", func() bool {
		s, r := shared.Traffic()
		return s-sent > 500 && r-received > 500 // TLS alone has more, both ways
	})
	shared.KillAPIServer()
	refused("while the server is down")
	if err := shared.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	stop()
	stop()
	refused("afterwards")
}

func TestDiesWithTheProcessThatStartedIt(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), dieEnv+"=1", "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids [2]int
	if _, err := fmt.Fscan(out, &pids[0], &pids[1]); err != nil {
		t.Error(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	for _, pid := range pids {
		eventually(t, "the end of process "+strconv.Itoa(pid), func() bool {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			return err != nil || strings.Contains(string(status), "State:\tZ") // waits for a lazy init
		})
	}
}

func TestWithoutBinariesTheErrorNamesTheCure(t *testing.T) {
	_, err := New(t.Context(), t.TempDir(), Options{Binaries: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "make controlplane") {
		t.Errorf("got %v", err)
	}
}

func TestAProcessThatCannotStartIsReportedWithItsLog(t *testing.T) {
	_, err := New(t.Context(), t.TempDir(), Options{APIServerArgs: []string{"--no-such-flag"}})
	if err == nil || !strings.Contains(err.Error(), "unknown flag: --no-such-flag") {
		t.Errorf("got %v", err)
	}
}

// A distribution's etcd is older, and has fewer flags.
func TestRunsOnDebiansEtcd(t *testing.T) {
	etcd := os.Getenv("RAIL_CNI_DEBIAN_ETCD")
	if etcd == "" {
		t.Fatal("RAIL_CNI_DEBIAN_ETCD is not the path of Debian's etcd; make test sets it (scripts/debian-files.sh)")
	}
	p := Start(t, Options{Etcd: etcd})
	version, _, err := p.Versions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("on etcd %s", version)
	want(t, 201)(p.Admin().Create(t.Context(), pools, pool("old")))
}
