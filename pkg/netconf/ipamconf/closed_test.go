package ipamconf

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// volume is a path that a pod can write to.
const volume = "/var/lib/kubelet/pods/0b3c/volumes/kubernetes.io~empty-dir/v"

// Networks that users have applied keep working, both without a node file and with a node file that
// has no list of paths.
func TestUsersNetworksAreOpenWithoutAListOfPaths(t *testing.T) {
	flat := filepath.Join(t.TempDir(), "whereabouts.conf")
	for _, node := range []*nodefile.File{nil, {NICs: []nodefile.NICPattern{{Name: "ens*"}}}} {
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
			if vet, err := node.VetKubeconfig(c.Kubeconfig, FlatFiles(flat)); err != nil || vet != nil && vet(nil) != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// Without a list of paths, a log in another place is not written, but the pod still gets its
// network.
func TestALogThatIsNotOpenByDefaultIsNotWritten(t *testing.T) {
	config := []byte(`{"ipam":{"range":"10.0.0.0/24","log_file":"/root/.ssh/authorized_keys"}}`)
	c, err := ParseWhereaboutsOn(nil, config, "", nil)
	if err != nil || c.Closed != nil || c.LogFile != "" || c.Unlogged == nil {
		t.Errorf("%v, %+v", err, c)
	}
	c, err = ParseWhereaboutsOn(&nodefile.File{Paths: []string{"/var/log/*"}}, config, "", nil)
	if err != nil || c.Closed == nil || c.LogFile != "" {
		t.Errorf("with a list: %v, %+v", err, c)
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
	all, none := &nodefile.File{Paths: []string{"/**"}}, (*nodefile.File)(nil)
	for name, c := range map[string]struct {
		node  *nodefile.File
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
		"the list's, that others may write":  {all, open, nil, "users other than root can write to"},
		"the list's, that is missing":        {all, mine + "-none", nil, ""}, // the client reports it
		"the list's, that is a directory":    {all, dir, nil, "it is not a regular file"},
		"the installer's, not in the list":   {&nodefile.File{Paths: []string{"/srv/*"}}, usual, nil, "not open"},
		"another of root's, not in the list": {&nodefile.File{Paths: []string{"/srv/*"}}, mine, nil, "not open"},
		"a service account, without a file":  {none, "", nil, ""},
		"a service account, with everything": {all, "", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			vet, err := c.node.VetKubeconfig(c.path, FlatFiles(filepath.Join(dir, "missing"), planted, flat))
			if err == nil && vet != nil {
				err = vet(c.files)
			}
			if c.want == "" && err != nil {
				t.Error(err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, nodefile.ErrClosed) || failure.KindOf(err) != failure.InvalidConfig) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestFlatFilesThatMayNameAKubeconfig(t *testing.T) {
	const open = "/etc/cni/net.d/whereabouts.d/mine.conf"
	var none *nodefile.File
	for named, want := range map[string][]string{"": nil, open: {open}, volume + "/flat": nil} {
		if got := FlatFilesWith(none, named).Paths; !slices.Equal(got, append(want, WhereaboutsFlatFiles()...)) {
			t.Errorf("%s: %q", named, got)
		}
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestWhereaboutsPathsThatAreClosedAreAsIfMissing(t *testing.T) {
	file, err := nodefile.Parse([]byte("paths: [/var/log/*]"))
	if err != nil {
		t.Fatal(err)
	}
	flat := filepath.Join(t.TempDir(), "flat")
	if err := os.WriteFile(flat, []byte(`{"kubernetes":{"kubeconfig":"/the/administrators"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := ParseWhereaboutsOn(file, []byte(`{"stateDir":"/evil","ipam":{"log_file":"/var/log/w.log","configuration_path":"/evil/flat",
		"kubernetes":{"kubeconfig":"/evil/kubeconfig"}}}`), "", []string{flat})
	if err != nil {
		t.Fatal(err)
	}
	if c.StateDir != nodefile.DefaultStateDir || c.Kubeconfig != "/the/administrators" || c.ConfigurationPath != "" || c.LogFile != "/var/log/w.log" {
		t.Errorf("%+v", c)
	}
	for _, want := range []string{`"stateDir": "/evil"`, `"kubeconfig": "/evil/kubeconfig"`, `"configuration_path": "/evil/flat"`, file.Path} {
		if c.Closed == nil || !strings.Contains(c.Closed.Error(), want) {
			t.Errorf("%v does not say %s", c.Closed, want)
		}
	}
	if c.Closed != nil && strings.Contains(c.Closed.Error(), "log_file") {
		t.Errorf("what is open is refused: %v", c.Closed)
	}
}
