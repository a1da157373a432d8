package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/examples"
	"github.com/rail-cni/rail-cni/integration/cluster"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// TestNodeWithAReadOnlyEtcAndUsr installs where the kubelet cannot make
// /etc/rail-cni. The node file of the values holds there.
func TestNodeWithAReadOnlyEtcAndUsr(t *testing.T) {
	need.Cluster(t)
	l := &installing{v1: build(t, "e2e-1")}
	l.lab = &lab{Cluster: cluster.Start(t, cluster.Options{Nodes: 1, Multus: cluster.Thin, Hardware: true, ReadOnly: true})}
	if err := l.LoadImage(t.Context(), l.v1.archive); err != nil {
		t.Fatal(err)
	}
	text, err := examples.Files.ReadFile("roce-nads.yaml")
	if err != nil {
		t.Fatal(err)
	}
	l.apply(t, text)
	n := l.Node(0)
	l.was = []string{l.files(t, n)}

	l.helm(t, "install", "rail-cni", chart, "--set", "image.tag="+l.v1.tag)
	for began := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		if strings.Contains(l.kubectl(t, "--namespace", "kube-system", "get", "events", "-o", "jsonpath={.items[*].message}"), "mkdir /etc/rail-cni: read-only file system") {
			break
		}
		if time.Since(began) > 2*time.Minute {
			t.Fatal("the default values are good enough for this node: " + l.kubectl(t, "--namespace", "kube-system", "get", "events"))
		}
	}
	l.helm(t, "upgrade", "rail-cni", chart, "--set", "image.tag="+l.v1.tag, "--values", filepath.Join(chart, "values-talos.yaml"), "--set", "nodeFile.nics[0].name=ens12np0", "--wait")
	l.rolledOut(t)
	l.wantPlugins(t, l.v1)
	if _, err := os.Stat(n.Path(nodefile.InstalledPath)); err != nil {
		t.Error(err)
	}
	host := testnet.OfProcess(t, n.Pid())
	l.run(t, pod{name: "open", networks: "roce-net-1"})
	if mtu := l.interfaces(t, "open")["net1"].MTU; mtu != 9000 {
		t.Errorf("net1 has the MTU %d", mtu)
	}
	before := host.State()
	l.create(t, pod{name: "closed", networks: "roce-net-2"})
	if said := l.sandboxEvents(t, "closed"); !strings.Contains(said, "ens11np0 is not open to networks on this node") || !strings.Contains(said, nodefile.InstalledPath) {
		t.Error(said)
	}
	l.delete(t, "closed")
	if d := host.Settled(before); d != "" {
		t.Errorf("%s is not as it was:\n%s", n.Name, d)
	}
	l.delete(t, "open")
	l.helm(t, "uninstall", "rail-cni")
	l.wantAsBefore(t)
}
