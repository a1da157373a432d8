package nodefile

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// volume is a path that a pod can write to.
const volume = "/var/lib/kubelet/pods/0b3c/volumes/kubernetes.io~empty-dir/v"

func TestPathsThatAreOpenWithoutANodeFile(t *testing.T) {
	for key, c := range map[string]struct{ open, closed []string }{
		KeyStateDir: {
			[]string{"", "/run/rail-cni", "/run/rail-cni/", "/run/rail-cni-b", "/var/run/rail-cni", "/var/lib/rail-cni", "/var/lib/rail-cni-b"},
			[]string{volume + "/state", "/run", "/run/rail-cni-b/a", "/var/lib/rail-cni/state", "/run/other", "/run/rail-cni/../other", "/run/rail", "/srv/run/rail-cni", "run/rail-cni", "/tmp/rail-cni", "/etc/cni/net.d/whereabouts.d/x", "/"},
		},
		KeyKubeconfig: {
			[]string{
				"/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig",            // whereabouts' installer, network-operator, GKE, Talos, kind
				"/etc/kubernetes/cni/net.d/whereabouts.d/whereabouts.kubeconfig", // OpenShift
				"/var/lib/rancher/k3s/agent/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig",
				"/var/lib/rancher/k3s/agent/etc/cni/net.d/whereabouts.kubeconfig",
				"/var/snap/microk8s/current/args/cni-network/whereabouts.d/whereabouts.kubeconfig",
			},
			[]string{
				volume + "/kubeconfig", "/etc/cni/net.d/whereabouts.d/../../../../" + volume, "/etc/cni/net.d/whereabouts.d/a/b", "/root/.kube/config", "/etc/kubernetes/admin.conf",
				"/run/rail-cni/attachments/c1@net1.json", "/tmp/whereabouts.log", "/var/snap/microk8s/a/b/args/cni-network/whereabouts.d/x", "whereabouts.d/whereabouts.kubeconfig",
			},
		},
		KeyFlatFile: {
			[]string{
				"/etc/cni/net.d/whereabouts.d", "/etc/cni/net.d/whereabouts.d/", "/etc/cni/net.d/whereabouts.d/whereabouts.conf", // the first with node slices
				"/host/etc/cni/net.d/whereabouts.d/whereabouts.conf", "/var/lib/rancher/k3s/agent/etc/cni/net.d/whereabouts.d/whereabouts.conf",
				"/var/lib/rancher/rke2/agent/etc/cni/net.d/whereabouts.d/whereabouts.conf",
			},
			[]string{volume, "/etc/shadow", "/etc/cni/net.d/10-calico.conflist"},
		},
		KeyLogFile: {
			[]string{"/tmp/whereabouts.log", "/var/log/whereabouts.log", "/var/log/whereabouts/net.log"},
			[]string{"/etc/cron.d/whereabouts", "/root/.ssh/authorized_keys", "/var/log/../../etc/passwd", volume + "/whereabouts.log"},
		},
	} {
		var none *File
		for _, name := range c.open {
			if err := none.CheckPath(key, name); err != nil {
				t.Error(err)
			}
		}
		for _, name := range c.closed {
			if err := none.CheckPath(key, name); !errors.Is(err, ErrClosed) || failure.KindOf(err) != failure.InvalidConfig || !strings.Contains(err.Error(), `"paths" in `+DefaultPath) {
				t.Errorf("%s %s: %v", key, name, err)
			}
			if !strings.Contains(name, "..") && filepath.IsAbs(name) && name != "/" && !(&File{Paths: []string{"/**"}}).OpensPath(key, name) {
				t.Errorf(`%s is closed by "/**"`, name)
			}
		}
	}
}

func TestPatternsOfPaths(t *testing.T) {
	for pattern, c := range map[string]struct{ open, closed string }{
		"/**":         {"/a /a/b /a/b/c", "a /"},
		"/srv/*":      {"/srv/a", "/srv /srv/a/b"},
		"/srv/**":     {"/srv/a /srv/a/b", "/srv /srvx/a /x/srv/a"},
		"/srv/*/s/**": {"/srv/a/s/x/y", "/srv/a/x/s /srv/a/b/s/x"},
	} {
		n, err := Read(nodeFile(t, `paths: ["`+pattern+`"]`))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range strings.Fields(c.open) {
			if !n.OpensPath(KeyStateDir, name) {
				t.Errorf("%s does not open %s", pattern, name)
			}
		}
		for _, name := range strings.Fields(c.closed) {
			if n.OpensPath(KeyStateDir, name) {
				t.Errorf("%s opens %s", pattern, name)
			}
		}
	}
}

// A missing state directory is made. If it were made in the place of the node file, no network
// could use the node any more.
func TestNoNetworkMayNameTheNodeFile(t *testing.T) {
	for _, n := range []*File{nil, {Paths: []string{"/**"}}} {
		for name, open := range map[string]bool{
			InstalledPath: false, InstalledPath + "/": false, InstalledPath + "/x": false, "/var/lib/rail-cni//./node.yaml": false,
			DefaultPath: false, DefaultPath + "/x": false,
			InstalledPath + "2": n != nil, "/var/lib/rail-cni/x": n != nil, "/var/lib/rail-cni-x": true,
		} {
			if got := n.OpensPath(KeyStateDir, name); got != open {
				t.Errorf("%+v: %s is open: %v", n, name, got)
			}
		}
	}
}
