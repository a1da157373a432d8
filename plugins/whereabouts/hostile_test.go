package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// A path that the author of a network wrote is neither waited for nor read
// without end, and what is no file is not written to.
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

// What the node file closes, ADD refuses and DEL passes over: it frees what
// was handed out before.
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
	with := func(verb string) []string { return append(a.env(verb), netconf.NodeFileEnv+"="+file) }
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

// A file that cannot be read, as while it is being saved, may close what a
// network names: nothing of that is used until it can be read, neither a
// credential plugin of its kubeconfig nor its state directory.
func TestPathsOfANetworkWaitForANodeFileThatCannotBeRead(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	file, kubeconfig, mark := filepath.Join(dir, "node.yaml"), filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "ran")
	for name, text := range map[string]string{
		file: "paths: [",
		kubeconfig: `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
			"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],
			"users":[{"name":"u","user":{"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"/usr/bin/touch","args":["` + mark + `"],"interactiveMode":"Never"}}}]}`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	own := n.config(`{"range":"10.0.0.0/24"}`)
	a := attachment{id: "c1", ifname: "net1"}
	n.add(a, own)
	ofCluster := strings.Replace(n.config(`{"range":"10.0.0.0/24","kubernetes":{"kubeconfig":"`+kubeconfig+`"}}`), n.dir, netconf.DefaultStateDir, 1)
	broken := strings.Replace(own, "10.0.0.0/24", "what", 1)
	for name, config := range map[string]string{"a kubeconfig": ofCluster, "a state directory": own, "a state directory, with a mistake": broken} {
		for _, verb := range []string{"DEL", "CHECK", "GC", "STATUS", "ADD"} {
			_, err := run(append(a.env(verb), netconf.NodeFileEnv+"="+file), config)
			asks := verb == "ADD" || verb == "STATUS" // which say what else is wrong
			if err == nil || !strings.Contains(err.Error(), file) && !(asks && config == broken) {
				t.Errorf("%s, %s: %v", name, verb, err)
			}
		}
	}
	if _, err := os.Lstat(mark); err == nil {
		t.Error("the program that the kubeconfig names was run")
	}
	if err := os.WriteFile(file, []byte("nics: []"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, config := range []string{own, strings.Replace(ofCluster, netconf.DefaultStateDir, dir+"/state", 1)} { // of which nobody answers
		if _, err := run(append(a.env("DEL"), netconf.NodeFileEnv+"="+file), config); err != nil {
			t.Errorf("DEL, when the file can be read: %v", err)
		}
	}
	n.checkEmpty("after DEL")
	if _, err := os.Lstat(mark); err != nil {
		t.Errorf("it is never run, so this test proves nothing: %v", err)
	}
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
