package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// installed returns the arguments of an agent that installs into directories of
// the test.
func installed(t *testing.T) (bin, record string, args []string) {
	t.Helper()
	bin, record = t.TempDir(), filepath.Join(t.TempDir(), "record")
	return bin, record, []string{"--install", "--own", testnet.Bin(t), "--cni-bin", bin, "--record", record}
}

// count returns the number of files in a directory.
func count(t *testing.T, dir string) int {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

func sum(t *testing.T, path string) string {
	t.Helper()
	sum, err := install.Sum(path)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

func wantTree(t *testing.T, dir, want string) {
	t.Helper()
	if have := testnet.Tree(t, dir); have != want {
		t.Errorf("%s has\n%sand not\n%s", dir, have, want)
	}
}

func TestInstalledPluginsStayUntilNoPodNeedsThem(t *testing.T) {
	l := newLab(t)
	l.node.NIC("ens1", l.wire)
	bin, record, args := installed(t)
	if err := os.WriteFile(filepath.Join(bin, "macvlan"), []byte("#!/bin/sh\n"), 0o750); err != nil {
		t.Fatal(err)
	}
	before := testnet.Tree(t, bin)
	l.path = bin
	a := l.start(args...)
	if n := count(t, bin); n != 4 {
		t.Errorf("%d plugins are installed", n)
	}
	pod := testnet.NewNetns(t, "pod")
	l.node.MustRun(l.call("macvlan", "ADD", "ens1", pod, "net1"))
	// An agent that is killed or stopped leaves all installed files in place.
	a.end(syscall.SIGKILL)
	if n := count(t, bin); n != 4 {
		t.Errorf("%d plugins are installed", n)
	}

	a = l.launch(append(args, "--uninstall")...)
	await(t, "it to say who needs the plugins", 10*time.Second, func() bool { return len(a.said("reason=NotUninstalled")) == 1 })
	await(t, "/readyz to say so", 10*time.Second, func() bool {
		code, text := a.get("/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(text, "ens1 as net1")
	})
	if n := count(t, bin); n != 4 {
		t.Errorf("%d plugins are installed", n)
	}
	pod.Kill() // the agent ends the attachment with its own plugins
	await(t, "it to uninstall", 20*time.Second, func() bool { return len(a.said("reason=Uninstalled")) == 1 })
	wantTree(t, bin, before)
	await(t, "it to be ready", 5*time.Second, func() bool {
		code, _ := a.get("/readyz")
		return code == http.StatusOK
	})
	if _, err := os.Stat(record); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the record is there: %v", err)
	}
	// An agent that is started again does not install the plugins.
	a.end(syscall.SIGTERM)
	l.start(append(args, "--uninstall")...).end(syscall.SIGTERM)
	wantTree(t, bin, before)

	// With --force the agent does not wait for pods.
	a = l.start(args...)
	l.node.MustRun(l.call("macvlan", "ADD", "ens1", testnet.NewNetns(t, "other"), "net1"))
	a.end(syscall.SIGTERM)
	l.start(append(args, "--uninstall", "--force")...)
	wantTree(t, bin, before)
}

// The node file of the manifests is handled like any installed file: another's
// file stays, and the agent's own is removed when it is no longer wanted.
func TestNodeFileOfTheManifests(t *testing.T) {
	const text = `{"nics":[{"name":"ens*np0"}],"allow":[]}`
	path := filepath.Join(t.TempDir(), "node.yaml")
	t.Setenv(nodefile.PathEnv, path)
	l := newLab(t)
	bin, _, args := installed(t)
	before := testnet.Tree(t, bin)
	with := append(slices.Clone(args), "--node-file="+text)

	l.start(with...).end(syscall.SIGTERM)
	n, err := nodefile.Read(path)
	if err != nil || n == nil || n.OpensNIC([]string{"eth0"}, "", "") || !n.OpensNIC([]string{"ens1np0"}, "", "") {
		t.Errorf("%+v, %v", n, err)
	}
	l.start(append(slices.Clone(args), "--node-file=allow: []")...).end(syscall.SIGTERM)
	if n, err := nodefile.Read(path); err != nil || !n.OpensNIC([]string{"eth0"}, "", "") || n.OpensOverride("uplink") {
		t.Errorf("changed: %+v, %v", n, err)
	}
	l.start(args...).end(syscall.SIGTERM)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("not wanted any more: %v", err)
	}
	if count(t, bin) != 4 {
		t.Error("the plugins went with it")
	}

	a := l.launch(append(slices.Clone(args), "--node-file=nic: []")...)
	await(t, "a mistake in it to be said", 10*time.Second, func() bool { return len(a.said("field nic not found")) == 1 })
	<-a.ended

	const mine = "nics: []\n"
	if err := os.WriteFile(path, []byte(mine), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, more := range [][]string{nil, {"--uninstall", "--force"}} {
		l.start(append(slices.Clone(with), more...)...).end(syscall.SIGTERM)
		if have, err := os.ReadFile(path); err != nil || string(have) != mine {
			t.Errorf("the administrator's own: %q, %v", have, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}

	l.start(with...).end(syscall.SIGTERM)
	l.start(append(slices.Clone(with), "--uninstall")...).end(syscall.SIGTERM)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("uninstalled: %v", err)
	}
	wantTree(t, bin, before)
}

func TestUninstallByHand(t *testing.T) {
	l := newLab(t)
	l.node.NIC("ens1", l.wire)
	bin, record, args := installed(t)
	before := testnet.Tree(t, bin)
	l.start(args...).end(syscall.SIGTERM)
	l.path = bin
	l.node.MustRun(l.call("macvlan", "ADD", "ens1", testnet.NewNetns(t, "pod"), "net1"))
	uninstall := func(more ...string) (string, error) {
		cmd := exec.Command(filepath.Join(testnet.Bin(t), "rail-agent"), append([]string{"uninstall", "--record", record, "--state-dir", l.state}, more...)...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := uninstall(); err == nil || !strings.Contains(out, "ens1 as net1") {
		t.Errorf("%v: %s", err, out)
	}
	if n := count(t, bin); n != 4 {
		t.Errorf("%d plugins are installed", n)
	}
	if out, err := uninstall("--force"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	wantTree(t, bin, before)
	if out, err := uninstall("--force"); err != nil {
		t.Errorf("again: %v: %s", err, out)
	}
}

func TestOtherPrefixAndFewerPlugins(t *testing.T) {
	l := newLab(t)
	bin, _, args := installed(t)
	if err := os.WriteFile(filepath.Join(bin, "macvlan"), []byte("#!/bin/sh\n"), 0o750); err != nil {
		t.Fatal(err)
	}
	before := testnet.Tree(t, bin)
	l.start(args...).end(syscall.SIGTERM)
	a := l.start(append(args, "--prefix", "rail-", "--plugins", "macvlan,whereabouts")...)
	if now := testnet.Tree(t, bin); !strings.HasPrefix(now, before+"/rail-macvlan ") || !strings.Contains(now, "\n/rail-whereabouts ") || count(t, bin) != 3 {
		t.Errorf("there are\n%s", now)
	}
	// The kept files are the installed ones.
	if err := os.Remove(filepath.Join(bin, "rail-macvlan")); err != nil {
		t.Fatal(err)
	}
	await(t, "it to be put back", 5*time.Second, func() bool { return len(a.said("reason=PluginRestored")) == 1 })
	if want, have := sum(t, filepath.Join(testnet.Bin(t), "macvlan")), sum(t, filepath.Join(bin, "rail-macvlan")); want != have {
		t.Errorf("what was put back is another: %s", have)
	}
	a.end(syscall.SIGTERM)
	for _, wrong := range [][]string{{"--prefix", "../"}, {"--plugins", "bridge"}, {"--token-lifetime", "1m"}} {
		a := l.launch(append(args, wrong...)...)
		<-a.ended
		if len(a.said("rail-agent: "+wrong[0])) != 1 {
			t.Errorf("%v: %v", wrong, a.said(""))
		}
	}
}

func TestOthersPluginThatComesLaterIsKeptToo(t *testing.T) {
	l := newLab(t)
	bin, _, args := installed(t)
	a := l.start(args...)
	const later = "#!/bin/sh\necho later\n"
	if err := os.WriteFile(filepath.Join(bin, "rdma"), []byte(later), 0o755); err != nil {
		t.Fatal(err)
	}
	await(t, "ours to be put back", 5*time.Second, func() bool { return len(a.said("reason=PluginRestored")) == 1 })
	a.end(syscall.SIGTERM)
	l.start(append(args, "--uninstall")...)
	if text, err := os.ReadFile(filepath.Join(bin, "rdma")); err != nil || string(text) != later {
		t.Errorf("%q, %v", text, err)
	}
	if n := count(t, bin); n != 1 {
		t.Errorf("%d files are left", n)
	}
}

var tokenIn = regexp.MustCompile(`token: "([^"]+)"`)

// TestKubeconfigOfThePlugin gets the token from a real API server. The files of whereabouts are in
// the same places as on a real node.
func TestKubeconfigOfThePlugin(t *testing.T) {
	plane := controlplane.Start(t, controlplane.Options{})
	if _, err := plane.ServiceAccount(t.Context(), "kube-system", "rail-cni-whereabouts"); err != nil { // makes it
		t.Fatal(err)
	}
	l := newLab(t)
	l.node = nil // the server is in the machine's own namespace
	bin, _, args := installed(t)
	conf := filepath.Join(t.TempDir(), "net.d")
	args = append(args, "--kubeconfig", plane.AdminKubeconfig(), "--cni-conf", conf, "--node", "node7")
	dir := filepath.Join(conf, "whereabouts.d")
	a := l.start(args...)
	kubeconfig := filepath.Join(dir, "whereabouts.kubeconfig")
	who := exec.Command("kubectl", "--kubeconfig", kubeconfig, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
	who.Path = testnet.Tool(t, "controlplane/kubectl", "cluster-binaries")
	if out, err := who.CombinedOutput(); err != nil || string(out) != "system:serviceaccount:kube-system:rail-cni-whereabouts" {
		t.Errorf("%v: %s", err, out)
	}
	for name, mode := range map[string]fs.FileMode{"whereabouts.kubeconfig": 0o600, "whereabouts.conf": 0o600, "nodename": 0o644} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	var flat struct {
		ConfigurationPath string `json:"configuration_path"`
		Kubernetes        struct{ Kubeconfig string }
	}
	if text, err := os.ReadFile(filepath.Join(dir, "whereabouts.conf")); err != nil || json.Unmarshal(text, &flat) != nil || flat.Kubernetes.Kubeconfig != kubeconfig || flat.ConfigurationPath != dir {
		t.Errorf("the flat file is %s, %v", text, err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "nodename")); err != nil || string(text) != "node7\n" {
		t.Errorf("nodename is %q, %v", text, err)
	}
	a.end(syscall.SIGTERM)
	l.start(append(args, "--uninstall")...).end(syscall.SIGTERM)
	if _, err := os.Stat(conf); err != nil {
		t.Errorf("the runtime's directory is gone: %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is there: %v", dir, err)
	}
	wantTree(t, bin, "")

	// By default, files of another installer stay. If a flag makes the agent replace them, an
	// uninstallation restores them.
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"whereabouts.kubeconfig", "whereabouts.conf"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("theirs"), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	theirs := testnet.Tree(t, dir)
	a = l.start(args...)
	if now := testnet.Tree(t, dir); !strings.HasSuffix(now, theirs) { // only "nodename" comes before them
		t.Errorf("there is\n%sand was\n%s", now, theirs)
	}
	await(t, "it to say so of both files", 10*time.Second, func() bool { return len(a.said("existing file kept")) == 2 })
	a.end(syscall.SIGTERM)
	a = l.start(append(args, "--replace-whereabouts-files")...)
	if text, err := os.ReadFile(kubeconfig); err != nil || !tokenIn.Match(text) {
		t.Errorf("%s, %v", text, err)
	}
	a.end(syscall.SIGTERM)
	l.start(append(args, "--replace-whereabouts-files", "--uninstall")...)
	wantTree(t, dir, theirs)
}

// TestUninstallThatWasKilledPutsThePluginsBackForAPod kills the agent after it has removed the
// plugins, although a pod needs them.
func TestUninstallThatWasKilledPutsThePluginsBackForAPod(t *testing.T) {
	l := newLab(t)
	l.node.NIC("ens1", l.wire)
	bin, record, args := installed(t)
	l.start(args...).end(syscall.SIGTERM)
	n := install.Open(record)
	// The rest of an installation is removed last.
	rest := filepath.Join(t.TempDir(), "whereabouts.d", "whereabouts.conf")
	if _, err := n.Put(t.Context(), install.File{Path: rest, Content: []byte("{}"), Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	pod := testnet.NewNetns(t, "pod")
	l.node.MustRun(l.call("macvlan", "ADD", "ens1", pod, "net1"))
	for _, name := range []string{"host-device", "macvlan", "rdma", "whereabouts"} {
		if _, err := n.Remove(filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	a := l.launch(append(args, "--uninstall")...)
	await(t, "the plugins to be put back", 10*time.Second, func() bool { return count(t, bin) == 4 })
	pod.Kill()
	await(t, "it to uninstall", 20*time.Second, func() bool { return len(a.said("reason=Uninstalled")) == 1 })
	if _, err := os.Stat(rest); count(t, bin) != 0 || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%d plugins are left, %v", count(t, bin), err)
	}
}

// TestForcedUninstallIsReadyWhateverIsLeft has a record that cannot be read.
func TestForcedUninstallIsReadyWhateverIsLeft(t *testing.T) {
	l := newLab(t)
	bin, _, args := installed(t)
	a := l.start(args...)
	if err := os.WriteFile(filepath.Join(l.state, "attachments", "x@net1.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.end(syscall.SIGTERM)
	a = l.launch(append(args, "--uninstall")...)
	await(t, "it to say what it cannot read", 10*time.Second, func() bool { return len(a.said("reason=NotUninstalled")) == 1 })
	a.end(syscall.SIGTERM)
	l.start(append(args, "--uninstall", "--force")...)
	wantTree(t, bin, "")
}

// TestInstallationThatTheAgentDoesNotSeeIsNotLeftBehind changes the CNI directory. An upgrade of
// the chart can do this, and then mounts only the new directory.
func TestInstallationThatTheAgentDoesNotSeeIsNotLeftBehind(t *testing.T) {
	l := newLab(t)
	bin, _, args := installed(t)
	l.start(args...).end(syscall.SIGTERM)
	if err := os.Rename(bin, bin+".hidden"); err != nil {
		t.Fatal(err)
	}
	other := t.TempDir()
	args[slices.Index(args, bin)] = other
	a := l.launch(args...)
	<-a.ended
	if len(a.said("restore the earlier settings")) != 1 || count(t, other) != 0 {
		t.Errorf("%d plugins are installed: %v", count(t, other), a.said(""))
	}
}

// TestTokenIsRenewed uses a server whose tokens live for three seconds. A real server refuses to
// issue such tokens.
func TestTokenIsRenewed(t *testing.T) {
	const life = 3 * time.Second
	var asked, away atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case away.Load() != 0:
			w.WriteHeader(http.StatusServiceUnavailable)
		case strings.HasSuffix(r.URL.Path, "/serviceaccounts/rail-cni-whereabouts/token"):
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, `{"kind":"TokenRequest","status":{"token":"token-%d","expirationTimestamp":%q}}`, asked.Add(1), time.Now().Add(life).UTC().Format(time.RFC3339))
		default:
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, `{"metadata":{}}`)
		}
	}))
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, fmt.Appendf(nil, `{"kind":"Config","apiVersion":"v1","current-context":"c","clusters":[{"name":"c","cluster":{"server":%q}}],
		"users":[{"name":"u","user":{"token":"t"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}]}`, server.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLab(t)
	l.node = nil
	_, _, args := installed(t)
	conf := t.TempDir()
	a := l.start(append(args, "--kubeconfig", kubeconfig, "--cni-conf", conf, "--api-server", "https://[fd00::1]:6443")...)
	path := filepath.Join(conf, "whereabouts.d", "whereabouts.kubeconfig")
	token := func() string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), `server: "https://[fd00::1]:6443"`) {
			t.Fatalf("another server: %s", text)
		}
		return tokenIn.FindStringSubmatch(string(text))[1] // never an incomplete file
	}
	first := token()
	took := await(t, "another token", 2*life, func() bool { return token() != first })
	if took > life {
		t.Errorf("it took %v", took)
	}
	away.Store(1)
	await(t, "it to say that the server is away", 90*time.Second, func() bool {
		code, text := a.get("/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(text, "503")
	})
	last := token()
	away.Store(0)
	await(t, "a token", 10*time.Second, func() bool { return token() != last })
	await(t, "it to be ready", 10*time.Second, func() bool {
		code, _ := a.get("/readyz")
		return code == http.StatusOK
	})
}
