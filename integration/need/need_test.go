package need

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

const child = "RAIL_CNI_TEST_NEED" // set in the process of TestChild: what it asks for

// TestMain is that of a package whose servers are not built, in the process that asks
// for it.
func TestMain(m *testing.M) {
	switch os.Getenv(child) {
	case "main":
		os.Exit(Main(Built("/nonexistent/etcd", "controlplane")))
	case "broken main":
		os.Exit(Main(errors.New("etcd does not start")))
	}
	os.Exit(m.Run())
}

// TestChild is run again by the tests below.
func TestChild(t *testing.T) {
	switch os.Getenv(child) {
	case "root":
		Root(t)
	case "cluster":
		Cluster(t)
	case "not built":
		NoError(t, Built("/nonexistent/etcd", "controlplane"))
	case "not installed":
		_, err := Installed("no-such-program", "some-package")
		NoError(t, err)
	case "installed":
		_, err := Installed("/bin/true", "coreutils")
		NoError(t, err)
	case "built":
		NoError(t, Built("/proc/self/exe", "build"))
	case "seed": // and that of the programs that this process starts
		fmt.Println("seed", Seed(), os.Getenv(SeedVariable))
	case "broken":
		NoError(t, errors.New("etcd does not start"))
	}
}

func TestWhatIsMissingSkipsUnlessAllTestsMustRun(t *testing.T) {
	for _, c := range []struct {
		asks, tests string
		want        string // in the output
		fails       bool
	}{
		{"root", "", "--- SKIP: TestChild", false},
		{"root", "", "run make test as root", false},
		{"root", "all", "--- FAIL: TestChild", true},
		{"not built", "", "--- SKIP: TestChild", false},
		{"not built", "", "etcd is not built: run make controlplane", false},
		{"not built", "all", "etcd is not built: run make controlplane", true},
		{"not installed", "", "install the package some-package", false},
		{"not installed", "", "--- SKIP: TestChild", false},
		{"not installed", "all", "--- FAIL: TestChild", true},
		{"installed", "all", "--- PASS: TestChild", false},
		{"installed", "quick", "--- SKIP: TestChild", false},
		{"broken", "", "etcd does not start", true},
		{"built", "", "--- PASS: TestChild", false},
		{"built", "all", "--- PASS: TestChild", false},
		{"built", "quick", "--- SKIP: TestChild", false},
		{"root", "quick", "--- SKIP: TestChild", false},
		{"main", "", "skipped: etcd is not built: run make controlplane", false},
		{"main", "all", "etcd is not built: run make controlplane", true},
		{"broken main", "", "etcd does not start", true},
		{"", "all", "--- PASS: TestChild", false},
	} {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestChild$", "-test.v")
		cmd.Dir = "/"
		cmd.Env = []string{child + "=" + c.asks, Variable + "=" + c.tests}
		if os.Geteuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534, NoSetGroups: true}}
		}
		out, err := cmd.CombinedOutput()
		if !strings.Contains(string(out), c.want) || (err != nil) != c.fails {
			t.Errorf("asks for %q with %s=%q: %v, want failure %v and %q in\n%s", c.asks, Variable, c.tests, err, c.fails, c.want, out)
		}
	}
}

// "go test ./..." as root takes no ten minutes, and a test that somebody names runs.
func TestClusterIsStartedWhereItIsAskedFor(t *testing.T) {
	Root(t)
	for _, c := range []struct{ flag, tests, want string }{
		{"-test.skip=^Test[^C]|^TestCl", "", "--- SKIP: TestChild"},
		{"-test.skip=^Test[^C]|^TestCl", "", "run go test -v github.com/rail-cni/rail-cni/integration/need -run '^TestChild$'"},
		{"-test.skip=^Test[^C]|^TestCl", "all", "--- PASS: TestChild"},
		{"-test.run=^TestChild$", "", "--- PASS: TestChild"},
		{"-test.run=^TestChild$", "quick", "--- SKIP: TestChild"},
	} {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", c.flag, "-test.v")
		cmd.Env = []string{child + "=cluster", Variable + "=" + c.tests, "PATH=" + os.Getenv("PATH")}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%s with %s=%q: %v, want %q in\n%s", c.flag, Variable, c.tests, err, c.want, out)
		}
	}
}
