package plugin

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/store"
)

// The author of a network chooses paths in it. The plugin must not block on such a path,
// must not read it without end, and must write to it only if it is a regular file.
func TestPathsThatAreNoFilesAreAnsweredAtOnce(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"log_file", "configuration_path"} {
		for _, path := range []string{fifo, "/dev/zero", dir, "/dev/full", "relative.log"} {
			n := newNode(t)
			quoted, err := json.Marshal(path)
			if err != nil {
				t.Fatal(err)
			}
			config := n.config(`{"range":"10.0.0.0/24","log_level":"debug","` + key + `":` + string(quoted) + `}`)
			a := attachment{id: "c1", ifname: "net1"}
			for _, verb := range []string{"ADD", "DEL"} {
				done := make(chan error, 1)
				go func() {
					_, err := run(a.env(verb), config)
					done <- err
				}()
				select {
				case err := <-done:
					if err != nil && code(err) == 0 {
						t.Errorf("%s with %s %s: %v", verb, key, path, err)
					}
				case <-time.After(30 * time.Second):
					t.Fatalf("%s with %s %s hangs", verb, key, path)
				}
			}
			n.checkEmpty(key + " " + path)
			if _, err := os.Lstat("relative.log"); err == nil {
				t.Error("a file was made where the plugin runs")
			}
		}
	}
}

// A log is written only to the plugin's own file, whatever the path links to.
func TestALogLeadsToNoOtherFile(t *testing.T) {
	for name, plant := range map[string]func(dir, victim string) (path string, err error){
		"a symbolic link": func(d, v string) (string, error) { return d + "/log", os.Symlink(v, d+"/log") },
		"a hard link":     func(d, v string) (string, error) { return d + "/log", os.Link(v, d+"/log") },
		"another user's file": func(d, v string) (string, error) {
			return v, os.Chown(v, 65534, 65534)
		},
		"a directory of others": func(d, _ string) (string, error) {
			return d + "/open/log", errors.Join(os.Mkdir(d+"/open", 0o700), os.Chmod(d+"/open", 0o777))
		},
		"a link to a directory of others": func(d, _ string) (string, error) {
			return d + "/link/log", errors.Join(os.Mkdir(d+"/open", 0o700), os.Chmod(d+"/open", 0o777), os.Symlink("open", d+"/link"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "another user's file" {
				need.Root(t)
			}
			n, dir := newNode(t), t.TempDir()
			victim := filepath.Join(dir, "victim")
			if err := os.WriteFile(victim, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			path, err := plant(dir, victim)
			if err != nil {
				t.Fatal(err)
			}
			config := n.config(`{"range":"10.0.0.0/24","log_level":"debug","log_file":"` + path + `"}`)
			_, said, err := runStderr(attachment{id: "c1", ifname: "net1"}.env("ADD"), config)
			if err != nil || !strings.Contains(said, "only errors are logged") {
				t.Errorf("%v; stderr has %q", err, said)
			}
			if data, err := os.ReadFile(victim); err != nil || len(data) > 0 {
				t.Errorf("written to another's file: %q, %v", data, err)
			}
			if _, err := os.Lstat(filepath.Join(dir, "open", "log")); err == nil {
				t.Error("a file was made in a directory of others")
			}
			n.del(attachment{id: "c1", ifname: "net1"}, config)
		})
	}
}

// ADD refuses paths that the node file forbids; DEL ignores them, and frees
// addresses that were assigned earlier.
func TestPathsThatTheNodeFileCloses(t *testing.T) {
	n := newNode(t)
	outside := filepath.Join(t.TempDir(), "log")
	plain := n.config(`{"range":"10.0.0.0/24"}`)
	config := n.config(`{"range":"10.0.0.0/24","log_file":"` + outside + `","log_level":"debug","configuration_path":"` + outside + `"}`)
	a := attachment{id: "c1", ifname: "net1"}
	n.add(a, plain)
	file := filepath.Join(t.TempDir(), "node.yaml")
	text := "paths: [" + n.dir + "]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	with := func(verb string) []string { return append(a.env(verb), nodefile.PathEnv+"="+file) }
	for _, verb := range []string{"ADD", "STATUS"} {
		_, err := run(with(verb), config)
		if err == nil || !strings.Contains(err.Error(), `"log_file"`) || !strings.Contains(err.Error(), `"configuration_path"`) {
			t.Errorf("%s: %v", verb, err)
		}
	}
	if _, err := run(with("ADD"), strings.Replace(plain, n.dir, n.dir+"-other", 1)); code(err) != cnierr.InvalidConfig {
		t.Errorf("another state directory: %v", err)
	}
	if _, err := run(with("DEL"), config); err != nil {
		t.Error(err)
	}
	n.checkEmpty("after DEL")
	for _, path := range []string{outside, n.dir + "-other"} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was made: %v", path, err)
		}
	}
	if _, err := run(attachment{id: "c1", ifname: "\xff\xfe"}.env("ADD"), plain); code(err) != cnierr.InvalidEnv {
		t.Errorf("an interface name that is no UTF-8: %v", err)
	}
}

// A node file that is unreadable, for example while it is being saved, may forbid the paths
// of a network. Until it is readable, the plugin uses none of these paths: neither the
// server of the kubeconfig nor the state directory.
func TestPathsOfANetworkWaitForANodeFileThatCannotBeRead(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	file, kubeconfig := filepath.Join(dir, "node.yaml"), filepath.Join(dir, "kubeconfig")
	server, asked := silentServer(t)
	for name, text := range map[string]string{
		file: "paths: [",
		kubeconfig: `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
			"clusters":[{"name":"c","cluster":{"server":"` + server + `"}}],"users":[{"name":"u","user":{"token":"t"}}]}`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	own := n.config(`{"range":"10.0.0.0/24"}`)
	a := attachment{id: "c1", ifname: "net1"}
	n.add(a, own)
	ofCluster := strings.Replace(n.config(`{"range":"10.0.0.0/24","kubernetes":{"kubeconfig":"`+kubeconfig+`"}}`), n.dir, nodefile.DefaultStateDir, 1)
	broken := strings.Replace(own, "10.0.0.0/24", "what", 1)
	for name, config := range map[string]string{"a kubeconfig": ofCluster, "a state directory": own, "a state directory, with a mistake": broken} {
		for _, verb := range []string{"DEL", "CHECK", "GC", "STATUS", "ADD"} {
			_, err := run(append(a.env(verb), nodefile.PathEnv+"="+file), config)
			asks := verb == "ADD" || verb == "STATUS" // these report other errors first
			if err == nil || !strings.Contains(err.Error(), file) && !(asks && config == broken) {
				t.Errorf("%s, %s: %v", name, verb, err)
			}
		}
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("the server that the kubeconfig names got %d connections", n)
	}
	if err := os.WriteFile(file, []byte("paths: [/**]"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, config := range []string{own, strings.Replace(ofCluster, nodefile.DefaultStateDir, dir+"/state", 1)} { // whose server does not answer
		if _, err := run(append(a.env("DEL"), nodefile.PathEnv+"="+file), config); err != nil {
			t.Errorf("DEL, when the file can be read: %v", err)
		}
	}
	n.checkEmpty("after DEL")
	if asked.Load() == 0 {
		t.Error("the server is never asked, so this test proves nothing")
	}
}

// silentServer returns the URL of a server that ends every connection at once, and
// their number.
func silentServer(t *testing.T) (url string, asked *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	asked = &atomic.Int32{}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			_ = conn.Close()
		}
	}()
	return "https://" + l.Addr().String(), asked
}

// A kubeconfig may name a program for credentials. The plugin runs as root, so it runs no such
// program, also where the node file opens every path. A DEL goes on: its address waits in the
// journal.
func TestProgramOfAKubeconfigIsNotRun(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	file, kubeconfig, mark := filepath.Join(dir, "node.yaml"), filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "ran")
	server, asked := silentServer(t)
	for name, text := range map[string]string{
		file: "paths: [/**]",
		kubeconfig: `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
			"clusters":[{"name":"c","cluster":{"server":"` + server + `"}}],
			"users":[{"name":"u","user":{"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"/usr/bin/touch","args":["` + mark + `"],"interactiveMode":"Never"}}}]}`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := attachment{id: "c1", ifname: "net1", args: "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p"}
	text := n.config(`{"range":"10.0.0.0/24","kubernetes":{"kubeconfig":"` + kubeconfig + `"}}`)
	for _, verb := range []string{"ADD", "STATUS", "DEL"} {
		_, err := run(append(a.env(verb), nodefile.PathEnv+"="+file), text)
		switch {
		case verb == "DEL" && err != nil:
			t.Errorf("DEL: %v", err)
		case verb != "DEL" && (err == nil || !strings.Contains(err.Error(), "kubeconfig "+kubeconfig+`: user "u": "exec" names a program`) || !strings.Contains(err.Error(), "tokenFile")):
			t.Errorf("%s: %v", verb, err)
		}
		if verb == "ADD" && code(err) != cnierr.InvalidConfig {
			t.Errorf("ADD: code %d of %v", code(err), err)
		}
	}
	if _, err := os.Lstat(mark); err == nil {
		t.Error("the program that the kubeconfig names was run")
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("the server got %d connections", n)
	}
	waiting, err := store.Journal{Path: netconf.JournalDir(n.dir)}.Waiting()
	if err != nil || waiting[store.Endpoint{Kubeconfig: kubeconfig}] != 1 {
		t.Errorf("the journal has %v: %v", waiting, err)
	}
}

// Without a node file, files that an author can have written are not used: no
// token is sent to the author's server.
func TestWithoutANodeFileWhatAnAuthorWroteIsNotUsed(t *testing.T) {
	need.Root(t)
	dir := t.TempDir() // like a volume of the author's pod
	secret := filepath.Join(t.TempDir(), "secret")
	var sent atomic.Int32
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { sent.Add(1) }))
	defer server.Close()
	if err := os.WriteFile(secret, []byte("another's token"), 0o600); err != nil {
		t.Fatal(err)
	}
	kubeconfig := func(user string) string {
		path := filepath.Join(dir, "kubeconfig")
		text := `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
			"clusters":[{"name":"c","cluster":{"insecure-skip-tls-verify":true,"server":"` + server.URL + `"}}],"users":[{"name":"u","user":` + user + `}]}`
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return `{"range":"10.0.0.0/24","kubernetes":{"kubeconfig":"` + path + `"}}`
	}
	for name, c := range map[string]struct {
		config func() string
		key    string
	}{
		"a token": {func() string { return config(`"ipam":` + kubeconfig(`{"tokenFile":"`+secret+`"}`)) }, "kubeconfig"},
		"a state directory": {func() string {
			return config(`"stateDir":"`+dir+`/state"`, `"ipam":{"range":"10.0.0.0/24","store":"local"}`)
		}, "stateDir"},
		"a flat file": {func() string {
			return config(`"ipam":{"range":"10.0.0.0/24","store":"local","configuration_path":"` + dir + `/flat"}`)
		}, "configuration_path"},
	} {
		t.Run(name, func(t *testing.T) {
			a := attachment{id: "c1", ifname: "net1", args: "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p"}
			closed := func(verb string) []string {
				return append(a.env(verb), nodefile.PathEnv+"="+filepath.Join(dir, "none.yaml"))
			}
			text := c.config()
			for _, verb := range []string{"ADD", "STATUS"} {
				if _, err := run(closed(verb), text); err == nil || verb == "ADD" && code(err) != cnierr.InvalidConfig || !strings.Contains(err.Error(), `"`+c.key+`": "`+dir) {
					t.Errorf("%s: %v", verb, err)
				}
			}
			if _, err := run(closed("DEL"), text); err != nil {
				t.Errorf("DEL of what never was: %v", err)
			}
			if _, err := os.Lstat(filepath.Join(dir, "state")); err == nil {
				t.Error("the author's state directory was used")
			}
			if n := sent.Load(); n > 0 {
				t.Errorf("the author's server got %d requests", n)
			}
		})
	}
}

// config returns a network config without a state directory of the test's own.
func config(keys ...string) string {
	return `{"cniVersion":"1.1.0","name":"net","type":"macvlan",` + strings.Join(keys, ",") + "}"
}

// ADD refuses a configuration that is too large before it assigns an address. A DEL with
// such a configuration still frees the address.
func TestALargeConfigIsRefusedAndEnds(t *testing.T) {
	n := newNode(t)
	a := attachment{id: "c1", ifname: "net1"}
	plain := n.config(`{"range":"10.0.0.0/24"}`)
	large := n.config(`{"range":"10.0.0.0/24"}`, `"note":"`+strings.Repeat("x", 1<<20)+`"`)
	for _, verb := range []string{"ADD", "STATUS"} {
		if _, err := run(a.env(verb), large); err == nil || verb == "ADD" && code(err) != cnierr.InvalidConfig || !strings.Contains(err.Error(), "more than 65536") {
			t.Errorf("%s: %v", verb, err)
		}
	}
	n.checkEmpty("after a refused ADD")
	n.add(a, plain)
	n.del(a, large)
	n.checkEmpty("after DEL")
}

func TestPrevResultsWithHolesAreErrors(t *testing.T) {
	n := newNode(t)
	a := attachment{id: "c1", ifname: "net1"}
	config := n.config(`{"range":"10.0.0.0/24"}`)
	n.add(a, config)
	for _, hole := range []string{
		"null", `{"cniVersion":"0.4.0","ips":[null]}`, `{"cniVersion":"0.4.0","interfaces":[null]}`, `{"cniVersion":"1.0.0","routes":[null]}`, `{"ips":[null]}`,
	} {
		if _, err := run(a.env("CHECK"), strings.Replace(config, "{", `{"prevResult":`+hole+",", 1)); code(err) == 0 || code(err) == cnierr.Mismatch {
			t.Errorf("prevResult %s: %v", hole, err)
		}
	}
	if _, err := run(a.env("DEL"), config); err != nil {
		t.Error(err)
	}
}
