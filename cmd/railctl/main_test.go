package main

import (
	"bytes"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func plainRun(args ...string) (stdout, stderr string, code int) {
	var out, errOut bytes.Buffer
	code = run(args, &out, &errOut)
	return out.String(), errOut.String(), code
}

func TestHelp(t *testing.T) {
	for _, c := range []struct {
		args  []string
		wants []string
	}{
		{[]string{"--help"}, []string{"show", "gc", "version", "completion", "--state-dir", "/run/rail-cni", "as root"}},
		{[]string{"show", "--help"}, []string{"Examples:", "--all", "table, wide, json, yaml", "lending", "freeing", "exit code is 1"}},
		{[]string{"show", "--help"}, []string{"PORT STATE", "-o wide", "NCCL_IB_GID_INDEX"}},
		{[]string{"ibdev2netdev", "--help"}, []string{"mlx5_0 port 1 ==> net1 (Up)", "--pod", "--container", "--netns", "carrier", "exit code is 1"}},
		{[]string{"rdma", "mode", "--help"}, []string{"/etc/modprobe.d/rail-cni-rdma.conf", "--now-only", "--persist-only", "--root", "initramfs", "exit code is 1"}},
		{[]string{"ipam", "--help"}, []string{"show", "explain", "check", "gc", "without root"}},
		{[]string{"ipam", "gc", "--help"}, []string{"Examples:", "--dry-run", "--grace", "--kubeconfig", "addresses until its DEL", "exit code is 1"}},
		{[]string{"install", "--help"}, []string{"Examples:", "--image", "--prefix", "--crds", "kubectl apply -f -"}},
		{[]string{"uninstall", "--help"}, []string{"Examples:", "--timeout", "--force", "--nodes-only", "restores the earlier files"}},
		{[]string{"gc", "--help"}, []string{"Examples:", "--dry-run", "never touches the attachments of living", "exit code is 1"}},
	} {
		out, errOut, code := plainRun(c.args...)
		if code != 0 || errOut != "" {
			t.Errorf("%v: exit code %d, stderr %q", c.args, code, errOut)
		}
		contains(t, "help", out, c.wants...)
	}
}

func TestMistakesAreNamed(t *testing.T) {
	for _, c := range []struct {
		args  []string
		wants []string
	}{
		{[]string{"shwo"}, []string{"railctl: ", `"shwo"`, "show"}},
		{[]string{"show", "-o", "xml"}, []string{"railctl: ", `"xml"`, "table, wide, json, yaml"}},
		{[]string{"show", "--nic", "x"}, []string{"railctl: ", "--nic"}},
		{[]string{"gc", "pod1"}, []string{"railctl: ", "pod1"}},
		{[]string{"install"}, []string{"railctl: ", "--manifest", "kubectl apply"}},
		{[]string{"install", "--manifest", "--prefix", "../"}, []string{"railctl: ", "--prefix", `"../"`}},
		{[]string{"install", "--manifest", "--image", "a b"}, []string{"railctl: ", "--image", `"a b"`}},
		{[]string{"uninstall", "--kubeconfig", "/none"}, []string{"railctl: ", "/none"}},
	} {
		out, errOut, code := plainRun(c.args...)
		if want := 1 + strings.Count(c.args[0], "shwo"); code != want || out != "" {
			t.Errorf("%v: exit code %d, stdout %q", c.args, code, out)
		}
		contains(t, "stderr", errOut, c.wants...)
	}
}

func TestVersion(t *testing.T) {
	out, _, code := plainRun("version")
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	contains(t, "version", out, "railctl (rail-cni) "+version, "CNI 0.1.0 to 1.1.0", "ledger records of version 1")
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		out, _, code := plainRun("completion", shell)
		if code != 0 {
			t.Errorf("%s: exit code %d", shell, code)
		}
		contains(t, shell, out, "railctl")
	}
	out, _, _ := plainRun("__complete", "show", "-o", "")
	contains(t, "completion of -o", out, "table\nwide\njson\nyaml\n")
}

func TestWithoutRootTheCureIsNamed(t *testing.T) {
	type ran struct {
		stderr string
		code   int
	}
	results := make(chan ran)
	for _, verb := range []string{"show", "gc", "ibdev2netdev", "rdma mode"} {
		go func() {
			// Only this thread gets another user. The thread ends with the goroutine.
			runtime.LockOSThread()
			var r ran
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 65534, ^uintptr(0)); errno != 0 && os.Geteuid() == 0 {
				r.stderr = errno.Error()
			} else {
				_, r.stderr, r.code = plainRun(strings.Fields(verb)...)
			}
			results <- r
		}()
		r := <-results
		if r.code != 1 {
			t.Errorf("%s: exit code %d, not 1", verb, r.code)
		}
		contains(t, "stderr", r.stderr, "run railctl as root")
	}
}
