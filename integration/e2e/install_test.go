package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/examples"
	"github.com/rail-cni/rail-cni/integration/cluster"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/integration/valuesets"
)

// version is a release of rail-cni: its image, and the directory of its
// programs.
type version struct{ tag, bin, archive string }

// The tree's top, and the chart in it.
const (
	top   = "../.."
	chart = top + "/" + valuesets.Chart
)

// build builds a release, and packs its image, which has the other tags too.
func build(t *testing.T, tag string, others ...string) version {
	t.Helper()
	dir := t.TempDir()
	v := version{tag: tag, bin: filepath.Join(dir, runtime.GOARCH), archive: filepath.Join(dir, tag+".tar")}
	began := time.Now()
	command := func(env []string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir, cmd.Env = top, append(os.Environ(), env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	if err := os.Mkdir(v.bin, 0o755); err != nil {
		t.Fatal(err)
	}
	command([]string{"CGO_ENABLED=0"}, "build", "-ldflags", "-s -w -X main.version="+tag, "-o", v.bin, "./plugins/...", "./cmd/rail-agent", "./cmd/railctl")
	command(nil, "run", "./scripts/image", "-tags", strings.Join(append([]string{tag}, others...), ","), "-out", v.archive, v.bin)
	t.Logf("image %s is built after %v", tag, time.Since(began).Round(time.Millisecond))
	return v
}

// installing is a cluster to install in, whose nodes have plugins and
// configuration of others.
type installing struct {
	*lab
	v1, v2 version
	was    []string // by node
}

func (l *installing) files(t *testing.T, n *cluster.Node) string {
	t.Helper()
	return testnet.Tree(t, n.CNIBin()) + testnet.Tree(t, n.CNIConf())
}

// beginInstalling starts a cluster without rail-cni.
func beginInstalling(t *testing.T) *installing {
	t.Helper()
	need.Cluster(t)
	l := &installing{v1: build(t, "e2e-1"), v2: build(t, "e2e-2")}
	began := time.Now()
	l.lab = &lab{Cluster: cluster.Start(t, cluster.Options{Multus: cluster.Thin, Hardware: true})}
	t.Logf("the cluster is up after %v", time.Since(began).Round(time.Millisecond))
	if err := l.LoadImage(t.Context(), l.v1.archive, l.v2.archive); err != nil {
		t.Fatal(err)
	}
	text, err := examples.Files.ReadFile("roce-nads.yaml")
	if err != nil {
		t.Fatal(err)
	}
	l.apply(t, text)
	// The first node has others' plugins, and a flat file that names a
	// kubeconfig which does not exist (any more).
	n := l.Node(0)
	long := time.Date(2021, 3, 4, 5, 6, 7, 8, time.UTC)
	for name, from := range map[string]string{"host-device": "host-device", "rdma": "rdma"} {
		text, err := os.ReadFile(filepath.Join(testnet.Peers(t), from))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(n.CNIBin(), name)
		if err := errors.Join(os.WriteFile(path, text, 0o700), os.Chmod(path, 0o751), os.Chown(path, 3, 4), os.Chtimes(path, long, long)); err != nil {
			t.Fatal(err)
		}
	}
	conf := filepath.Join(n.CNIConf(), "whereabouts.d")
	flat := `{"datastore": "kubernetes", "log_level": "error", "kubernetes": {"kubeconfig": "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"}}`
	if err := errors.Join(os.Symlink("bridge", filepath.Join(n.CNIBin(), "macvlan")), os.Mkdir(conf, 0o750),
		os.WriteFile(filepath.Join(conf, "whereabouts.conf"), []byte(flat), 0o640)); err != nil {
		t.Fatal(err)
	}
	for _, n := range l.Nodes() {
		l.was = append(l.was, l.files(t, n))
	}
	return l
}

// tool runs helm, kubectl or railctl as an administrator.
func (l *installing) tool(t *testing.T, path string, args ...string) (string, error) {
	t.Helper()
	cmd := l.toolCommand(t.Context(), t.TempDir(), path, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	began := time.Now()
	out, err := cmd.Output()
	t.Logf("%s %s: %v", filepath.Base(path), strings.Join(args, " "), time.Since(began).Round(10*time.Millisecond))
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", filepath.Base(path), strings.Join(args, " "), err, stderr.Bytes())
	}
	return string(out), err
}

// toolCommand returns a command of helm, kubectl or railctl, as an administrator whose home is the directory.
func (l *installing) toolCommand(ctx context.Context, home, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "KUBECONFIG=" + l.Kubeconfig()}
	return cmd
}

func (l *installing) must(t *testing.T, path string, args ...string) string {
	t.Helper()
	out, err := l.tool(t, path, args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

func (l *installing) helm(t *testing.T, args ...string) string {
	t.Helper()
	return l.must(t, testnet.Tool(t, "helm", "tools"), append(args, "--namespace", "kube-system", "--timeout", "3m")...)
}

// rolledOut waits until each node's agent, and the reconciler, is a new one and
// ready.
func (l *installing) rolledOut(t *testing.T) {
	t.Helper()
	for _, object := range []string{"daemonset/rail-agent", "deployment/rail-cni-reconciler"} {
		l.kubectl(t, "--namespace", "kube-system", "rollout", "status", object, patience)
	}
}

// wantPlugins fails the test unless every node has the plugins of a release and
// their kubeconfig.
func (l *installing) wantPlugins(t *testing.T, v version) {
	t.Helper()
	for _, n := range l.Nodes() {
		for _, name := range []string{"host-device", "macvlan", "rdma", "whereabouts"} {
			want, err := os.ReadFile(filepath.Join(v.bin, name))
			if err != nil {
				t.Fatal(err)
			}
			have, err := os.ReadFile(filepath.Join(n.CNIBin(), name))
			if err != nil || !bytes.Equal(have, want) {
				t.Errorf("%s: %s is not that of %s (%d bytes, %v)", n.Name, name, v.tag, len(have), err)
			}
		}
		for name, mode := range map[string]fs.FileMode{"whereabouts.kubeconfig": 0o600, "whereabouts.conf": 0o600, "nodename": 0o644} {
			info, err := os.Stat(filepath.Join(n.CNIConf(), "whereabouts.d", name))
			if err != nil || info.Mode() != mode && !(n == l.Node(0) && name == "whereabouts.conf") {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
	}
}

// wantAsBefore fails the test unless each node is as before.
func (l *installing) wantAsBefore(t *testing.T) {
	t.Helper()
	for i, n := range l.Nodes() {
		if now := l.files(t, n); now != l.was[i] {
			t.Errorf("%s had\n%sand has\n%s", n.Name, l.was[i], now)
		}
		if left, err := os.ReadDir(n.Path("/var/lib/rail-cni")); err == nil {
			for _, e := range left {
				if e.Name() != "ipam-journal" {
					t.Errorf("%s: /var/lib/rail-cni has %s", n.Name, e.Name())
				}
			}
		}
	}
}

// wantNICs fails the test unless two pods on two nodes reach each other by
// their rail.
func (l *installing) wantNICs(t *testing.T, a, b string) {
	t.Helper()
	for _, name := range []string{a, b} {
		if mtu := l.interfaces(t, name)["net1"].MTU; mtu != 9000 {
			t.Errorf("%s: net1 has the MTU %d", name, mtu)
		}
	}
	address, _, _ := strings.Cut(l.interfaces(t, b)["net1"].ipv4(), "/")
	l.exec(t, a, "ping", "-c1", "-W5", "-I", "net1", address)
}

// pair makes two pods, one on each node, with the NIC of a rail.
func (l *installing) pair(t *testing.T, name string, rail int) (a, b string) {
	t.Helper()
	network := fmt.Sprintf("roce-net-%d", rail)
	a, b = name+"-a", name+"-b"
	l.run(t, pod{name: a, node: 0, networks: network}, pod{name: b, node: 1, networks: network})
	l.wantNICs(t, a, b)
	return a, b
}

// story installs, upgrades, downgrades and uninstalls, while pods hold NICs all
// the time, and end under another release than they began.
func (l *installing) story(t *testing.T, install, upgrade, goBack, callOff func(), uninstall func(wait time.Duration) (string, error)) {
	install()
	l.rolledOut(t)
	l.wantPlugins(t, l.v1)
	a1, b1 := l.pair(t, "one", 1)

	upgrade()
	l.rolledOut(t)
	l.wantPlugins(t, l.v2)
	l.wantNICs(t, a1, b1)
	a2, b2 := l.pair(t, "two", 2)
	l.delete(t, a1)
	a1, _ = "one-again", l.exec(t, b1, "true")
	l.run(t, pod{name: a1, node: 0, networks: "roce-net-1"}) // the NIC was returned
	l.wantNICs(t, a1, b1)

	goBack()
	l.rolledOut(t)
	l.wantPlugins(t, l.v1)
	l.wantNICs(t, a1, b1)
	l.wantNICs(t, a2, b2)
	l.delete(t, a2, a1)

	// One node has lent nothing any more. It is done, and the other one waits.
	out, err := uninstall(20 * time.Second)
	if err == nil {
		t.Fatalf("it uninstalled although %s and %s have NICs\n%s", b1, b2, out)
	}
	for _, want := range []string{l.Node(1).Name, "default/" + b1, "default/" + b2, "ens12np0"} {
		if !strings.Contains(out+err.Error(), want) {
			t.Errorf("%q is not said:\n%s\n%v", want, out, err)
		}
	}
	// On a busy machine an agent is replaced later than the command waits.
	now := l.files(t, l.Node(0))
	for deadline := time.Now().Add(time.Minute); now != l.was[0] && time.Now().Before(deadline); now = l.files(t, l.Node(0)) {
		time.Sleep(time.Second)
	}
	if now != l.was[0] {
		t.Errorf("%s had\n%sand has\n%s", l.Node(0).Name, l.was[0], now)
	}
	if _, err := os.Stat(filepath.Join(l.Node(1).CNIBin(), "whereabouts")); err != nil {
		t.Errorf("%s has lost its plugins: %v", l.Node(1).Name, err)
	}
	callOff()
	l.rolledOut(t)
	l.wantPlugins(t, l.v1)
	l.delete(t, b1, b2)
	if out, err := uninstall(2 * time.Minute); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	l.wantAsBefore(t)
	if left := l.kubectl(t, "get", "daemonsets,deployments,leases,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,jobs", "--all-namespaces",
		"--selector", "app.kubernetes.io/name=rail-cni", "--output", "name"); left != "" {
		t.Errorf("there is left: %s", left)
	}
	for _, left := range l.held(t) {
		t.Errorf("an address is left: %s", left)
	}
}

func TestInstallUpgradeRollbackAndUninstall(t *testing.T) {
	l := beginInstalling(t)
	t.Run("helm", func(t *testing.T) {
		tag := func(v version) []string {
			return []string{"--set", "image.tag=" + v.tag, "--set", "whereabouts.replaceFiles=true", "--set", "uninstall.timeout=20s", "--wait"}
		}
		l.story(t, func() {
			l.helm(t, append([]string{"install", "rail-cni", chart}, tag(l.v1)...)...)
		}, func() {
			l.helm(t, append([]string{"upgrade", "rail-cni", chart}, tag(l.v2)...)...)
		}, func() {
			l.helm(t, "rollback", "rail-cni", "1", "--wait")
		}, func() {
			l.helm(t, "rollback", "rail-cni", "1", "--wait")
		}, func(wait time.Duration) (string, error) {
			out, err := l.tool(t, testnet.Tool(t, "helm", "tools"), "uninstall", "rail-cni", "--namespace", "kube-system", "--timeout", (wait + time.Minute).String())
			if err != nil {
				out += l.kubectl(t, "--namespace", "kube-system", "logs", "job/rail-cni-uninstall")
			}
			return out, err
		})
	})
	t.Run("kustomize", func(t *testing.T) {
		overlay := func(v version) string {
			dir, err := os.MkdirTemp(top+"/deployments", "e2e-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			text := "resources: [../kustomize/base, ../crds]\nimages: [{name: localhost/rail-cni, newTag: " + v.tag + "}]\n"
			if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			return dir
		}
		first := overlay(l.v1)
		l.story(t, func() {
			l.kubectl(t, "apply", "--validate=strict", "--kustomize", first)
		}, func() { // by the objects that railctl prints, which are the same
			l.apply(t, []byte(l.must(t, filepath.Join(l.v2.bin, "railctl"), "install", "--manifest", "--image", "localhost/rail-cni:"+l.v2.tag)))
		}, func() { // by deletion of all objects, and by others in the cluster
			l.kubectl(t, "delete", "--wait", patience, "--kustomize", top+"/deployments/kustomize/base")
			l.wantPlugins(t, l.v2)
			l.kubectl(t, "apply", "--validate=strict", "--kustomize", first)
		}, func() {
			l.kubectl(t, "apply", "--validate=strict", "--kustomize", first)
		}, func(wait time.Duration) (string, error) {
			return l.tool(t, filepath.Join(l.v2.bin, "railctl"), "uninstall", "--timeout", wait.String())
		})
	})
	t.Run("prefix and a namespace of its own", l.prefixed)
}

// prefixed installs beside others' plugins and leaves these unchanged.
func (l *installing) prefixed(t *testing.T) {
	const namespace = "rails"
	helm := testnet.Tool(t, "helm", "tools")
	l.kubectl(t, "create", "namespace", namespace)
	// As an administrator who allows no other pods does.
	l.kubectl(t, "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=privileged")
	l.must(t, helm, "install", "rails", chart, "--namespace", namespace, "--set", "image.tag="+l.v1.tag, "--set", "plugins.prefix=rail-", "--set", "privileged=false", "--set", "admissionPolicy=true",
		"--set", "uninstall.timeout=40s", "--set-string", "nodeSelector.feature\\.node\\.kubernetes\\.io/pci-15b3\\.present=true", "--wait", "--timeout", "3m")
	for i, n := range l.Nodes() {
		for line := range strings.Lines(l.was[i]) {
			if path, _, _ := strings.Cut(line, " "); path != "" && path != "/whereabouts.d" && !strings.Contains(l.files(t, n), line) {
				t.Errorf("%s: %s is another", n.Name, path)
			}
		}
	}
	l.nad(t, "prefixed", `{"cniVersion": "1.0.0", "name": "prefixed", "plugins": [
		{"type": "rail-macvlan", "master": "ens2f0", "mtu": 9000, "ipam": {"type": "rail-whereabouts", "range": "10.44.0.0/24"}},
		{"type": "rail-rdma", "rdma": "auto"}]}`)
	l.nad(t, "prefixed-whole", `{"cniVersion": "1.0.0", "name": "whole", "type": "rail-host-device", "device": "ens12np0",
		"ipam": {"type": "rail-whereabouts", "range": "10.45.0.0/24"}}`)
	l.run(t, pod{name: "p-a", node: 0, networks: "prefixed,prefixed-whole"}, pod{name: "p-b", node: 1, networks: "prefixed"})
	l.wantNICs(t, "p-a", "p-b")
	if mtu := l.interfaces(t, "p-a")["net2"].MTU; mtu != 9000 {
		t.Errorf("net2 has the MTU %d", mtu)
	}

	// Attachments whose pod dies without a DEL: the agent, in its container
	// without privileges, runs the node's IPAM plugin with the node's
	// kubeconfig, and restores the NIC's settings that the pod has changed.
	n := l.Node(0)
	if ip, err := n.Exec(t.Context(), "cat", "/run/rail-cni/node-ip"); err != nil || strings.TrimSpace(ip) != n.Address {
		t.Errorf("the agent stored %q as the node's address in the cluster: %v", ip, err)
	}
	host := testnet.OfProcess(t, n.Pid())
	host.Sysctl("ipv4/conf/ens18np0/arp_notify", "1") // the kernel resets it when the NIC moves
	before := host.State()
	if _, err := n.Exec(t.Context(), "ip", "netns", "add", "dies"); err != nil {
		t.Fatal(err)
	}
	add := n.Command(t.Context(), "env", "CNI_COMMAND=ADD", "CNI_CONTAINERID=dies", "CNI_IFNAME=net1", "CNI_NETNS=/var/run/netns/dies", "CNI_PATH=/opt/cni/bin",
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=dies", "/opt/cni/bin/rail-macvlan")
	add.Stdin = strings.NewReader(`{"cniVersion": "1.0.0", "name": "dies", "type": "rail-macvlan", "master": "ens2f0", "ipam": {"type": "rail-whereabouts", "range": "10.46.0.0/24"}}`)
	if out, err := add.CombinedOutput(); err != nil || !strings.Contains(strings.Join(l.held(t), "\n"), "default/dies") {
		t.Fatalf("%v\n%s", err, out)
	}
	add = n.Command(t.Context(), "env", "CNI_COMMAND=ADD", "CNI_CONTAINERID=dies", "CNI_IFNAME=net2", "CNI_NETNS=/var/run/netns/dies", "CNI_PATH=/opt/cni/bin",
		"/opt/cni/bin/rail-host-device")
	add.Stdin = strings.NewReader(`{"cniVersion": "1.0.0", "name": "dies-too", "type": "rail-host-device", "device": "ens18np0"}`)
	if out, err := add.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const change = "ip link set net2 mtu 1400; cd /proc/sys/net; echo 2 >ipv4/conf/net2/rp_filter; echo 0 >ipv6/conf/net2/accept_ra; echo 1 >ipv6/conf/net2/disable_ipv6"
	if out, err := n.Exec(t.Context(), "ip", "netns", "exec", "dies", "sh", "-ec", change); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := n.Exec(t.Context(), "ip", "netns", "del", "dies"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for strings.Contains(strings.Join(l.held(t), "\n"), "default/dies") {
		if time.Sleep(100 * time.Millisecond); time.Since(began) > 30*time.Second {
			t.Fatalf("its address is not freed: %s", l.kubectl(t, "--namespace", namespace, "logs", "--selector", "app.kubernetes.io/component=agent", "--prefix"))
		}
	}
	t.Logf("freed after %v", time.Since(began).Round(time.Millisecond))
	if d := host.Settled(before); d != "" {
		t.Errorf("%s is not as it was:\n%s", n.Name, d)
	}

	if out, err := l.tool(t, filepath.Join(l.v1.bin, "railctl"), "uninstall"); err == nil || !strings.Contains(err.Error(), "name its namespace with --namespace "+namespace) {
		t.Errorf("agents in another namespace: %s, %v", out, err)
	}
	if out, err := l.tool(t, filepath.Join(l.v1.bin, "railctl"), "uninstall", "--namespace", namespace); err == nil || !strings.Contains(err.Error(), "helm uninstall rails --namespace "+namespace) {
		t.Errorf("what helm has installed: %s, %v", out, err)
	}
	l.delete(t, "p-a", "p-b")
	l.must(t, helm, "uninstall", "rails", "--namespace", namespace, "--timeout", "3m")
	l.wantAsBefore(t)
	for _, left := range l.held(t) {
		t.Errorf("an address is left: %s", left)
	}
}
