package multus

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/examples"
	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// node is a machine of the cluster.
type node struct {
	*testnet.Netns
	t    testing.TB
	name string
	pid  int // of a process in its namespaces
	// runtimeBin is the runtime's directory of CNI plugins, with Multus.
	runtimeBin string
	log        *os.File // of Multus
}

// initScript is the first process of a node. It makes the node's directories,
// reports them, waits for the node's files, starts Multus' daemon ($2, its
// configuration $3) if there is one, and ends both with the test, whose end of
// stdin closes in any case.
const initScript = `
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs "$1"
mkdir "$1/netns"
mount --rbind /run/netns "$1/netns"
mount --rbind "$1" /run
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /etc
echo ready
read -r furnished
if [ -n "$2" ]; then
	"$2" -config "$3" &
	trap "kill $!" EXIT
fi
cat
`

const (
	clusterConf = "/etc/cni/multus/net.d/10-cluster.conflist"
	multusConf  = "/etc/cni/net.d/00-multus.conf"
	daemonConf  = "/etc/cni/net.d/multus.d/daemon-config.json"
	kubeconfig  = "/etc/cni/net.d/multus.d/multus.kubeconfig"
	accountDir  = "/var/run/secrets/kubernetes.io/serviceaccount"
	flatFile    = "/etc/cni/net.d/whereabouts.d/whereabouts.conf"
	ipamAccount = "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"
)

// newNodes makes two nodes: NICs with the names in the examples' NADs, each
// cabled to that of the same name on the other node, the cluster's network, and
// the files of Multus' and whereabouts' installers.
func newNodes(t testing.TB, mode string) (nodes [2]*node) {
	t.Helper()
	for i := range nodes {
		nodes[i] = &node{Netns: testnet.NewNetns(t, "node"), t: t, name: fmt.Sprintf("node-%d", i)}
	}
	cable := func(nic string, mtu int) {
		nodes[0].IP("link", "add", nic, "mtu", strconv.Itoa(mtu), "type", "veth", "peer", "name", nic, "mtu", strconv.Itoa(mtu), "netns", nodes[1].Name)
		for _, n := range nodes {
			n.IP("link", "set", nic, "up")
		}
	}
	nics := append(rails(t), sharedNIC)
	for _, nic := range nics {
		cable(nic, 9000)
	}
	cable("uplink", 1500)
	for i, n := range nodes {
		// With an address and a port of its own the bridge stays unchanged when
		// pods come and go.
		n.IP("link", "add", "cni0", "address", fmt.Sprintf("02:00:00:00:00:0%d", i), "type", "bridge")
		n.Sysctl("ipv6/conf/cni0/accept_ra", "0") // as the bridge plugin would
		n.IP("link", "set", "cni0", "up")
		n.IP("link", "set", "uplink", "master", "cni0")
		n.boot(i, mode)
	}
	for _, n := range nodes {
		// The kernel reports a carrier up to a second late.
		for began := time.Now(); strings.Count(n.IP("-o", "link"), " state UP ") != len(nics)+2; time.Sleep(10 * time.Millisecond) {
			if time.Since(began) > 30*time.Second {
				t.Fatalf("links of %s have no carrier:\n%s", n.name, n.IP("-o", "link"))
			}
		}
	}
	return nodes
}

// boot starts the node's first process.
func (n *node) boot(i int, mode string) {
	t := n.t
	t.Helper()
	stop, err := plane.Reach("/run/netns/" + n.Name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	if n.log, err = os.OpenFile(filepath.Join(t.TempDir(), "multus.log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--net=/run/netns/" + n.Name, "--", "unshare", "--mount", "--propagation", "slave", "sh", "-ec", initScript, "init", t.TempDir()}
	if mode == thick {
		args = append(args, multusBinary(t, "multus-daemon"), daemonConf)
	}
	host, port, _ := strings.Cut(strings.TrimPrefix(plane.Server(), "https://"), ":")
	first := exec.Command("nsenter", args...)
	first.Env = append(os.Environ(), "KUBERNETES_SERVICE_HOST="+host, "KUBERNETES_SERVICE_PORT="+port, "HOME=/root", "USER=root",
		"GOGC=1", // see ended
		nodefile.PathEnv+"="+nodefile.DefaultPath)
	first.Stderr = n.log
	stdin, err := first.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := first.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	n.pid = first.Process.Pid
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = first.Wait()
		if text, err := os.ReadFile(n.log.Name()); t.Failed() && err == nil {
			t.Logf("Multus of %s wrote:\n%s", n.name, text)
		}
		_ = n.log.Close()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the node's first process: %q, %v", line, err)
	}
	n.furnish(i, mode)
	if _, err := fmt.Fprintln(stdin); err != nil {
		t.Fatal(err)
	}
}

// furnish writes the node's files.
func (n *node) furnish(i int, mode string) {
	n.t.Helper()
	bin := n.pluginDir()
	n.runtimeBin = n.t.TempDir()
	config := map[string]any{
		"cniVersion": "1.0.0", "name": "multus-cni-network", "clusterNetwork": "cluster", "binDir": bin,
		"logLevel": "verbose", "logToStderr": true,
	}
	binary := "multus"
	if mode == thick {
		// The daemon writes the runtime's file.
		binary = "multus-shim"
		config["multusConfigFile"], config["multusAutoconfigDir"] = "auto", filepath.Dir(clusterConf)
		n.writeJSON(daemonConf, config)
		n.write(accountDir+"/ca.crt", string(plane.CA()))
		n.write(accountDir+"/token", multusAccount.Token)
	} else {
		config["type"], config["kubeconfig"] = binary, kubeconfig
		n.writeJSON(multusConf, config)
		n.kubeconfig(kubeconfig, multusAccount)
	}
	// The runtime runs here, but its plugin must run on the node.
	script := fmt.Sprintf("#!/bin/sh\nexport "+nodefile.PathEnv+"="+nodefile.DefaultPath+"\nexec nsenter --mount=/proc/%d/ns/mnt --net=/run/netns/%s -- %s\n", n.pid, n.Name, multusBinary(n.t, binary))
	if err := os.WriteFile(filepath.Join(n.runtimeBin, binary), []byte(script), 0o755); err != nil {
		n.t.Fatal(err)
	}
	// By its name, in Multus' confDir: if clusterNetwork names a file by its
	// path, Multus 4.3.0 caches the conflist without the keys that it does not
	// know, and the cluster network's DEL fails.
	n.writeJSON(clusterConf, map[string]any{
		"cniVersion": "1.0.0", "name": "cluster", "plugins": []any{map[string]any{
			"type": "bridge", "bridge": "cni0",
			"ipam": map[string]any{"type": "host-local", "ranges": []any{[]any{map[string]any{"subnet": fmt.Sprintf("10.244.%d.0/24", i)}}}},
		}},
	})
	n.writeJSON(flatFile, map[string]any{
		"datastore": "kubernetes", "kubernetes": map[string]any{"kubeconfig": ipamAccount}, "reconciler_cron_expression": "30 4 * * *",
	})
	n.kubeconfig(ipamAccount, adminAccount)
	n.write(filepath.Dir(flatFile)+"/nodename", n.name)
}

func (n *node) kubeconfig(path string, c controlplane.Credential) {
	n.t.Helper()
	n.write(path, "") // its directory
	if _, err := plane.Kubeconfig(c, controlplane.Form{Path: n.file(path)}); err != nil {
		n.t.Fatal(err)
	}
}

// pluginDir returns the node's directory of plugins: ours under the names of
// the reference plugins, and those of the cluster's network.
func (n *node) pluginDir() string {
	n.t.Helper()
	dir := n.t.TempDir()
	for from, names := range map[string][]string{
		testnet.Bin(n.t):   {"host-device", "macvlan", "whereabouts"},
		testnet.Peers(n.t): {"bridge", "host-local"},
	} {
		for _, name := range names {
			if err := os.Symlink(filepath.Join(from, name), filepath.Join(dir, name)); err != nil {
				n.t.Fatal(err)
			}
		}
	}
	return dir
}

// file returns a path by which this process reaches a file of the node.
func (n *node) file(path string) string { return fmt.Sprintf("/proc/%d/root%s", n.pid, path) }

func (n *node) write(path, text string) {
	n.t.Helper()
	if strings.HasPrefix(path, "/var/run/") {
		path = strings.TrimPrefix(path, "/var") // an absolute link would lead out of the node
	}
	if err := os.MkdirAll(filepath.Dir(n.file(path)), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(n.file(path), []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) writeJSON(path string, v any) {
	n.t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		n.t.Fatal(err)
	}
	n.write(path, string(text))
}

// records returns the records of the node's ledger.
func (n *node) records() []*ledger.Record {
	n.t.Helper()
	l, err := ledger.Open(n.file("/run/rail-cni"))
	if err != nil {
		n.t.Fatal(err)
	}
	defer l.Close()
	records, errs := l.List()
	if len(errs) > 0 {
		n.t.Fatal(errs)
	}
	for i, r := range records { // complete; a list leaves parts out
		if records[i], err = l.Get(r.Key); err != nil {
			n.t.Fatal(err)
		}
	}
	return records
}

// multusBinary returns the path of one of Multus' binaries.
func multusBinary(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(testnet.Peers(t), "kubernetes", name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("Multus is not built (run `make multus`): %v", err)
	}
	return path
}

// rails returns the NICs that the examples' eight NADs lend, in their order.
func rails(t testing.TB) []string {
	t.Helper()
	networks, err := examples.Networks("roce-nads.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var nics []string
	for _, n := range networks {
		var conf struct{ Device string }
		if err := json.Unmarshal(n.Config, &conf); err != nil {
			t.Fatal(err)
		}
		nics = append(nics, conf.Device)
	}
	return nics
}

// sharedNIC is the master in the examples' macvlan NAD.
const sharedNIC = "ens2f0"

// documents returns the objects of an example file, unchanged.
func documents(t testing.TB, file string) [][]byte {
	t.Helper()
	text, err := examples.Files.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Split(text, []byte("\n---\n"))
}
