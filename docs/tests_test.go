package docs

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	testOf    = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	testNamed = regexp.MustCompile(`^(?:Test|Fuzz)\w+$`)
)

// tests returns the number of packages with a test or fuzz target, by its name.
func tests(t *testing.T) map[string]int {
	t.Helper()
	return testsBelow(t, "cmd", "deployments", "docs", "examples", "integration", "pkg", "scripts")
}

// testsBelow is [tests] for some directories of the tree.
func testsBelow(t *testing.T, tops ...string) map[string]int {
	t.Helper()
	found := map[string]int{}
	for _, top := range tops {
		err := filepath.WalkDir(filepath.Join(root(t), top), func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(name, "_test.go") {
				return err
			}
			data, err := os.ReadFile(name)
			for _, m := range testOf.FindAllStringSubmatch(string(data), -1) {
				found[m[1]]++
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// TestTestsThatPagesNameExist holds the pages about invariants and testing to the code.
func TestTestsThatPagesNameExist(t *testing.T) {
	exists := tests(t)
	named := 0
	for _, page := range pages(t) {
		for _, name := range Code(fenced.ReplaceAllString(Page(t, page), "")) {
			if !testNamed.MatchString(name) {
				continue
			}
			named++
			if exists[name] == 0 {
				t.Errorf("%s names %s, which does not exist", page, name)
			}
		}
	}
	if named < 50 {
		t.Errorf("only %d tests are named", named)
	}
}

// rows returns the words of each line of a file of scripts that is no comment.
func rows(t *testing.T, name string) (all [][]string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), "scripts", name))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 0 && !strings.HasPrefix(words[0], "#") {
			all = append(all, words)
		}
	}
	if len(all) == 0 {
		t.Fatalf("scripts/%s is empty", name)
	}
	return all
}

// TestLeftOutTestsAreRunElsewhere holds scripts/long.txt to the code. "make test" leaves out tests
// by name and packages by directory, but none that the page about invariants relies on.
func TestLeftOutTestsAreRunElsewhere(t *testing.T) {
	exists, invariants := tests(t), Page(t, "docs/design/invariants.md")
	relied := func(name string) bool { return strings.Contains(invariants, "`"+name+"`") }
	parts := map[string]bool{}
	for _, words := range rows(t, "nightly.txt") {
		parts[words[0]] = true
	}
	list := rows(t, "long.txt")
	long := map[string]bool{}
	for _, words := range list {
		if len(words) < 4 || !parts[words[1]] {
			t.Errorf("%q needs a test or ./DIRECTORY, a part of scripts/nightly.txt, paths and a reason", words)
			continue
		}
		name, _, subtest := strings.Cut(words[0], "/")
		if dir, ok := strings.CutPrefix(words[0], "./"); ok {
			inPackage := testsBelow(t, dir)
			if len(inPackage) == 0 {
				t.Errorf("%s has no tests", words[0])
			}
			for name := range inPackage {
				long[name] = true
				if relied(name) {
					t.Errorf("%s is left out with %s, and docs/design/invariants.md relies on it", name, words[0])
				}
			}
			name = words[0]
		} else {
			if n := exists[name]; n != 1 {
				t.Errorf("%d packages have a test named %s, want 1: -skip would skip all of them", n, name)
			}
			if !subtest && relied(name) {
				t.Errorf("%s is left out, and docs/design/invariants.md relies on it", name)
			}
			long[name] = !subtest
		}
		for glob := range strings.SplitSeq(words[2], ",") {
			fixed, _, _ := strings.Cut(glob, "*")
			if _, err := os.Stat(filepath.Join(root(t), fixed)); err != nil {
				t.Errorf("%s watches %s, which is not in the tree: %v", name, glob, err)
			}
		}
	}
	for _, words := range list {
		for _, name := range regexp.MustCompile(`(Test\w+) stays`).FindAllStringSubmatch(strings.Join(words[3:], " "), -1) {
			if exists[name[1]] == 0 || long[name[1]] {
				t.Errorf("%s is named as staying, but is left out or does not exist: %q", name[1], words)
			}
		}
	}
}

// TestLongFormRunsEachNight holds scripts/nightly.txt to the Makefile and to the workflow.
func TestLongFormRunsEachNight(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root(t), name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	makefile, workflow := read("Makefile"), read(".github/workflows/nightly.yaml")
	_, matrix, _ := strings.Cut(workflow, "part: [")
	matrix, _, _ = strings.Cut(matrix, "]")
	scheduled := strings.FieldsFunc(matrix, func(r rune) bool { return strings.ContainsRune(", \n", r) })
	var parts []string
	for _, words := range rows(t, "nightly.txt") {
		parts = append(parts, words[0])
		if len(words) < 3 || words[1] != "make" || !regexp.MustCompile(`(?m)^`+words[2]+`: `).MatchString(makefile) {
			t.Errorf("%q needs a part and the command of a make target", words)
		}
	}
	if !slices.Equal(scheduled, parts) {
		t.Errorf("nightly.yaml runs %q, want the parts of scripts/nightly.txt: %q", scheduled, parts)
	}
	if !strings.Contains(workflow, "schedule:") || !strings.Contains(workflow, "make nightly PART=") {
		t.Error("nightly.yaml does not run the parts by a schedule")
	}
}

// TestLongTestRunsWhereItsCodeChanged runs scripts/long.sh in a repository of its own.
func TestLongTestRunsWhereItsCodeChanged(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	run := func(env string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = dir
		cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "GIT_") || strings.HasPrefix(kv, "BASE=") }), env)
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	must := func(args ...string) {
		t.Helper()
		if out, err := run("A=B", args...); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	script, err := os.ReadFile(filepath.Join(root(t), "scripts", "long.sh"))
	if err != nil {
		t.Fatal(err)
	}
	write("scripts/long.sh", string(script))
	write("scripts/long.txt", "# comment\n\nTestInstall e2e deploy/**,cmd/agent/** why TestOther stays\nTestModel/slow crash-model crash/* why\n./lab e2e crash/*,lab/** why\n")
	write("deploy/chart/a.yaml", "1")
	write("crash/deep/x.go", "package deep\n")
	write("lab/lab_test.go", "package lab\n")
	write("e2e/install_test.go", "package e2e\n\nfunc TestInstall(t *testing.T) {}\n")
	must("git", "init", "-q")
	must("git", "add", "-A")
	must("git", "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "-m", "base")

	const install, model = "^TestInstall$", "^TestModel$/^slow$"
	both := install + "|" + model
	left := func(what, want, base string, args ...string) {
		t.Helper()
		if got, err := run("BASE="+base, append([]string{"scripts/long.sh"}, args...)...); err != nil || got != want {
			t.Errorf("%s: %q (%v), want %q", what, got, err, want)
		}
	}
	left("without BASE", both, "")
	left("of a part", model, "", "crash-")
	left("packages", "lab", "", "packages")
	left("nothing changed", both, "HEAD")
	write("crash/deep/x.go", "package deep // changed\n")
	left("a path that no glob has", both, "HEAD")
	write("deploy/chart/a.yaml", "2")
	left("a path that changed", model, "HEAD")
	must("git", "checkout", "-q", "deploy")
	write("e2e/install_test.go", "package e2e\n\nfunc TestInstall(t *testing.T) { t.Log() }\n")
	left("the test itself", model, "HEAD")
	must("git", "checkout", "-q", "e2e")
	write("crash/new.go", "package crash\n")
	left("a new file", install, "HEAD")
	left("a package that watches a new file", "", "HEAD", "packages")
	if out, err := run("BASE=gone", "scripts/long.sh"); err == nil {
		t.Errorf("an unknown revision leaves out %q", out)
	}
}

// TestKubernetesPageHasEveryRelease holds the page to the modules that pin the releases, and to the
// part of the long form that each newer one has.
func TestKubernetesPageHasEveryRelease(t *testing.T) {
	var documented [][]string
	for _, row := range Rows(Section(t, "docs/reference/kubernetes.md", "Releases that tests run on")) {
		if len(row) == 3 {
			documented = append(documented, row[:2])
		}
	}
	modules, err := filepath.Glob(filepath.Join(root(t), "integration/controlplane/binaries/kubernetes*/go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	var pinned [][]string
	for _, file := range modules {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		version := func(module string) string {
			m := regexp.MustCompile(`(?m)\b` + regexp.QuoteMeta(module) + ` v(\S+)`).FindSubmatch(text)
			if m == nil {
				t.Fatalf("%s does not require %s", file, module)
			}
			return string(m[1])
		}
		kubernetes := version("k8s.io/kubernetes")
		pinned = append(pinned, []string{kubernetes, version("go.etcd.io/etcd/server/v3")})
		release, newer := strings.CutPrefix(filepath.Base(filepath.Dir(file)), "kubernetes-")
		if !newer {
			continue // "make test" has it
		}
		if !strings.HasPrefix(kubernetes, release+".") {
			t.Errorf("%s pins Kubernetes %s", file, kubernetes)
		}
		if !slices.ContainsFunc(rows(t, "nightly.txt"), func(words []string) bool {
			return words[0] == "kubernetes-"+release && slices.Contains(words, "KUBERNETES="+release)
		}) {
			t.Errorf("scripts/nightly.txt has no part kubernetes-%s", release)
		}
	}
	if !slices.EqualFunc(documented, pinned, slices.Equal) {
		t.Errorf("the page has %q, the modules pin %q", documented, pinned)
	}
}

// TestKindsPageSaysWhatTheRigFound: the table is compared with the plugins in the rig.
func TestKindsPageSaysWhatTheRigFound(t *testing.T) {
	Generated(t, "docs/reference/kinds.md", "kinds", Page(t, "integration/rig/tests/testdata/kinds.md"))
}
