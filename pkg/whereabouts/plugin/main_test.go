package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// binary is the plugin as users run it, built once.
var binary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := scratch.MkdirTemp("whereabouts")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer scratch.Remove(dir)
		binary = filepath.Join(dir, "whereabouts")
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, "github.com/rail-cni/rail-cni/plugins/whereabouts")
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%s\n%v\n", out, err)
			return 1
		}
		return m.Run()
	}())
}

// node is a state directory and the configs that use it.
type node struct {
	t   testing.TB
	dir string
}

func newNode(t testing.TB) *node {
	t.Helper()
	return &node{t: t, dir: t.TempDir()}
}

// config returns a network config at 1.1.0. keys are put beside the ipam
// object.
func (n *node) config(ipam string, keys ...string) string {
	return n.configAt("1.1.0", ipam, keys...)
}

func (n *node) configAt(version, ipam string, keys ...string) string {
	n.t.Helper()
	dir, err := json.Marshal(n.dir)
	if err != nil {
		n.t.Fatal(err)
	}
	c := fmt.Sprintf(`{"cniVersion":%q,"name":"net","type":"macvlan","stateDir":%s,"ipam":%s`, version, dir, ipam)
	for _, k := range keys {
		c += "," + k
	}
	return c + "}"
}

// attachment has the values of the environment.
type attachment struct{ id, ifname, args string }

func (a attachment) env(verb string) []string {
	return []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + a.id, "CNI_IFNAME=" + a.ifname, "CNI_ARGS=" + a.args,
		"CNI_NETNS=/nonexistent/netns", "CNI_PATH=/nonexistent", testnet.OpenNodeFileEnv,
	}
}

// run executes the plugin. It returns the printed error as an error.
func run(env []string, stdin string) (string, error) {
	out, _, err := runStderr(env, stdin)
	return out, err
}

func runStderr(env []string, stdin string) (stdout, stderr string, _ error) {
	cmd := exec.Command(binary)
	cmd.Env = env
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		var cni types.Error
		if json.Unmarshal(out.Bytes(), &cni) != nil || cni.Code == 0 {
			return out.String(), errs.String(), fmt.Errorf("%w: %s %s", err, out.String(), errs.String())
		}
		return "", errs.String(), &cni
	}
	return out.String(), errs.String(), nil
}

// code returns the CNI error code of run's error, or 0 if there is no error.
func code(err error) uint {
	var cni *types.Error
	if errors.As(err, &cni) {
		return cni.Code
	}
	return 0
}

func (n *node) add(a attachment, config string) string {
	n.t.Helper()
	out, err := run(a.env("ADD"), config)
	if err != nil {
		n.t.Fatalf("ADD %+v %s: %v", a, config, err)
	}
	return out
}

func (n *node) del(a attachment, config string) {
	n.t.Helper()
	if _, err := run(a.env("DEL"), config); err != nil {
		n.t.Fatalf("DEL %+v: %v", a, err)
	}
}

// addresses returns the addresses of a result of version 0.3 or later.
func addresses(t testing.TB, result string) []string {
	t.Helper()
	var r struct {
		IPs []struct{ Address string }
	}
	if err := json.Unmarshal([]byte(result), &r); err != nil {
		t.Fatalf("%s: %v", result, err)
	}
	var as []string
	for _, ip := range r.IPs {
		as = append(as, ip.Address)
	}
	return as
}

func (n *node) checkEmpty(when string) {
	n.t.Helper()
	if left := testnet.Leftovers(n.t, n.dir); len(left) != 0 {
		n.t.Errorf("%s these are left: %s", when, strings.Join(left, " "))
	}
}
