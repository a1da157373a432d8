package netconf

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
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
		keyKubeconfig: {
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
		keyFlatFile: {
			[]string{
				"/etc/cni/net.d/whereabouts.d", "/etc/cni/net.d/whereabouts.d/", "/etc/cni/net.d/whereabouts.d/whereabouts.conf", // the first with node slices
				"/host/etc/cni/net.d/whereabouts.d/whereabouts.conf", "/var/lib/rancher/k3s/agent/etc/cni/net.d/whereabouts.d/whereabouts.conf",
				"/var/lib/rancher/rke2/agent/etc/cni/net.d/whereabouts.d/whereabouts.conf",
			},
			[]string{volume, "/etc/shadow", "/etc/cni/net.d/10-calico.conflist"},
		},
		keyLogFile: {
			[]string{"/tmp/whereabouts.log", "/var/log/whereabouts.log", "/var/log/whereabouts/net.log"},
			[]string{"/etc/cron.d/whereabouts", "/root/.ssh/authorized_keys", "/var/log/../../etc/passwd", volume + "/whereabouts.log"},
		},
	} {
		var none *NodeFile
		for _, name := range c.open {
			if err := none.CheckPath(key, name); err != nil {
				t.Error(err)
			}
		}
		for _, name := range c.closed {
			if err := none.CheckPath(key, name); !errors.Is(err, ErrClosed) || failure.KindOf(err) != failure.InvalidConfig || !strings.Contains(err.Error(), `"paths" in `+DefaultNodeFile) {
				t.Errorf("%s %s: %v", key, name, err)
			}
			if !strings.Contains(name, "..") && filepath.IsAbs(name) && name != "/" && !(&NodeFile{Paths: []string{"/**"}}).OpensPath(key, name) {
				t.Errorf(`%s is closed by "/**"`, name)
			}
		}
	}
}

// Networks that users have applied keep working, without a node file and with
// one that has no list of paths.
func TestUsersNetworksAreOpenWithoutAListOfPaths(t *testing.T) {
	flat := filepath.Join(t.TempDir(), "whereabouts.conf")
	for _, node := range []*NodeFile{nil, {NICs: []NICPattern{{Name: "ens*"}}}} {
		for name, ipam := range map[string]string{
			"RoCE, eight rails": `{"type":"whereabouts","range":"172.31.1.0/24","gateway":"172.31.1.1"}`,
			"network-operator":  `{"type":"whereabouts","range":"192.168.3.225/28","exclude":["192.168.3.229/30","192.168.3.236/32"]}`,
			"network-operator's documentation": `{"type":"whereabouts","datastore":"kubernetes","kubernetes":{"kubeconfig":"/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"},
				"range":"192.168.3.225/28","log_file":"/var/log/whereabouts.log","log_level":"info"}`,
			"whereabouts' documentation": `{"type":"whereabouts","datastore":"kubernetes","kubernetes":{"kubeconfig":"/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"},
				"range":"192.168.2.225/28","log_file":"/tmp/whereabouts.log","log_level":"debug"}`,
			"k3s":         `{"type":"whereabouts","range":"10.1.0.0/24","configuration_path":"/var/lib/rancher/k3s/agent/etc/cni/net.d/whereabouts.d/whereabouts.conf"}`,
			"node slices": `{"type":"whereabouts","range":"10.0.0.0/8","node_slice_size":"/22","configuration_path":"/etc/cni/net.d/whereabouts.d"}`,
		} {
			text := `{"cniVersion":"0.3.1","name":"n","type":"host-device","ipam":` + ipam + `}`
			// whereabouts' installer (script/lib.sh) writes this one.
			must(t, os.WriteFile(flat, []byte(`{"datastore":"kubernetes","configuration_path":"/etc/cni/net.d/whereabouts.d",
				"kubernetes":{"kubeconfig":"/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"},"reconciler_cron_expression":"30 4 * * *"}`), 0o600))
			c, err := ParseWhereaboutsOn(node, []byte(text), "", []string{flat})
			if err != nil || c.Closed != nil || c.Unlogged != nil {
				t.Errorf("%s: %v, %+v", name, err, c)
				continue
			}
			if vet, err := node.VetKubeconfig(c.Kubeconfig, []string{flat}); err != nil || vet != nil && vet(nil) != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// Without a list of paths a log elsewhere is not written, but the pod gets its
// network.
func TestALogThatIsNotOpenByDefaultIsNotWritten(t *testing.T) {
	config := []byte(`{"ipam":{"range":"10.0.0.0/24","log_file":"/root/.ssh/authorized_keys"}}`)
	c, err := ParseWhereaboutsOn(nil, config, "", nil)
	if err != nil || c.Closed != nil || c.LogFile != "" || c.Unlogged == nil {
		t.Errorf("%v, %+v", err, c)
	}
	c, err = ParseWhereaboutsOn(&NodeFile{Paths: []string{"/var/log/*"}}, config, "", nil)
	if err != nil || c.Closed == nil || c.LogFile != "" {
		t.Errorf("with a list: %v, %+v", err, c)
	}
}

func TestPatternsOfPaths(t *testing.T) {
	for pattern, c := range map[string]struct{ open, closed string }{
		"/**":         {"/a /a/b /a/b/c", "a /"},
		"/srv/*":      {"/srv/a", "/srv /srv/a/b"},
		"/srv/**":     {"/srv/a /srv/a/b", "/srv /srvx/a /x/srv/a"},
		"/srv/*/s/**": {"/srv/a/s/x/y", "/srv/a/x/s /srv/a/b/s/x"},
	} {
		n, err := ReadNodeFile(nodeFile(t, `paths: ["`+pattern+`"]`))
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

func TestVetKubeconfig(t *testing.T) {
	const usual = "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"
	dir := t.TempDir()
	flat, mine, open := filepath.Join(dir, "flat"), filepath.Join(dir, "mine"), filepath.Join(dir, "open")
	planted := filepath.Join(dir, "planted")
	must(t, os.WriteFile(flat, []byte(`{"kubernetes":{"kubeconfig":"/the/administrators"}}`), 0o600),
		os.WriteFile(planted, []byte(`{"kubernetes":{"kubeconfig":"/the/authors"}}`), 0o600), os.Chmod(planted, 0o666),
		os.WriteFile(mine, nil, 0o600), os.WriteFile(open, nil, 0o600), os.Chmod(open, 0o666))
	all, none := &NodeFile{Paths: []string{"/**"}}, (*NodeFile)(nil)
	for name, c := range map[string]struct {
		node  *NodeFile
		path  string
		files []string
		want  string // "" is permitted
	}{
		"the installer's":                    {none, usual, nil, ""},
		"credentials beside it":              {none, usual, []string{"/etc/cni/net.d/whereabouts.d/token", "/etc/cni/net.d/whereabouts.d/ca.crt"}, ""},
		"a pod's service account":            {none, usual, []string{"/var/run/secrets/kubernetes.io/serviceaccount/token"}, ""},
		"kubeadm's and the kubelet's":        {none, usual, []string{"/etc/kubernetes/pki/ca.crt", "/var/lib/kubelet/pki/kubelet-client-current.pem"}, ""},
		"Kubespray's":                        {none, usual, []string{"/etc/kubernetes/ssl/ca.crt"}, ""},
		"a token of another":                 {none, usual, []string{"/var/lib/kubelet/pods/x/volumes/kubernetes.io~projected/t/token"}, "the file /var/lib/kubelet"},
		"a token by ..":                      {none, usual, []string{"/etc/kubernetes/../shadow"}, "the file /etc/kubernetes/../shadow"},
		"an author's":                        {none, volume + "/k", nil, `"kubeconfig": "` + volume},
		"the flat file's, with a file":       {none, "/the/administrators", []string{"/root/token"}, ""},
		"that of a flat file planted there":  {none, "/the/authors", nil, "not open"},
		"the list's, with a file":            {all, mine, []string{"/root/token"}, ""},
		"the list's, that others may write":  {all, open, nil, "may be written by others"},
		"the list's, that is missing":        {all, mine + "-none", nil, ""}, // the client reports it
		"the list's, that is a directory":    {all, dir, nil, "it is not a regular file"},
		"the installer's, not in the list":   {&NodeFile{Paths: []string{"/srv/*"}}, usual, nil, "not open"},
		"another of root's, not in the list": {&NodeFile{Paths: []string{"/srv/*"}}, mine, nil, "not open"},
		"a service account, without a file":  {none, "", nil, ""},
		"a service account, with everything": {all, "", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			vet, err := c.node.VetKubeconfig(c.path, []string{filepath.Join(dir, "missing"), planted, flat})
			if err == nil && vet != nil {
				err = vet(c.files)
			}
			if c.want == "" && err != nil {
				t.Error(err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, ErrClosed) || failure.KindOf(err) != failure.InvalidConfig) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestFlatFilesThatMayNameAKubeconfig(t *testing.T) {
	const open = "/etc/cni/net.d/whereabouts.d/mine.conf"
	var none *NodeFile
	for named, want := range map[string][]string{"": nil, open: {open}, volume + "/flat": nil} {
		if got := none.FlatFiles(named); !slices.Equal(got, append(want, WhereaboutsFlatFiles()...)) {
			t.Errorf("%s: %q", named, got)
		}
	}
}

// A state directory is made if it is missing: in the place of the node file it
// would close the node to all networks.
func TestNoNetworkMayNameTheNodeFile(t *testing.T) {
	for _, n := range []*NodeFile{nil, {Paths: []string{"/**"}}} {
		for name, open := range map[string]bool{
			InstalledNodeFile: false, InstalledNodeFile + "/": false, InstalledNodeFile + "/x": false, "/var/lib/rail-cni//./node.yaml": false,
			DefaultNodeFile: false, DefaultNodeFile + "/x": false,
			InstalledNodeFile + "2": n != nil, "/var/lib/rail-cni/x": n != nil, "/var/lib/rail-cni-x": true,
		} {
			if got := n.OpensPath(KeyStateDir, name); got != open {
				t.Errorf("%+v: %s is open: %v", n, name, got)
			}
		}
	}
}
