package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"

	"github.com/rail-cni/rail-cni/integration/need"
)

const (
	top     = "../.."
	version = "v0.1.0"
)

// run runs a command at the top of the checkout, and returns its standard output.
func run(t *testing.T, env []string, command ...string) string {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir, cmd.Env = top, append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", command, err, out, stderr.Bytes())
	}
	return string(out)
}

// programs returns a directory with the built programs in a directory of this architecture, as
// "make image" has them.
func programs(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, runtime.GOARCH), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, program := range names {
		from := filepath.Join(os.Getenv("RAIL_CNI_BIN"), program)
		need.NoError(t, need.Built(from, "build"))
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, runtime.GOARCH, program), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// packed packs an image of two programs, and returns the directory with its files.
func packed(t *testing.T) string {
	t.Helper()
	dir, out := programs(t, "railctl", "macvlan"), t.TempDir()
	run(t, nil, "go", "run", "./scripts/image", "-tags", version+",devel",
		"-out", filepath.Join(out, "rail-cni-"+version+".tar"), filepath.Join(dir, runtime.GOARCH))
	return out
}

// TestBillOfMaterialsIsValidSPDX reads the bill with the library of the SPDX project, which
// checks what the specification demands.
func TestBillOfMaterialsIsValidSPDX(t *testing.T) {
	f, err := os.Open(filepath.Join(packed(t), "rail-cni-"+version+".spdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	bill, err := spdxjson.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(bill); err != nil {
		t.Error(err)
	}
	described, err := spdxlib.GetDescribedPackageIDs(bill)
	if err != nil || len(described) != 1 || described[0] != "image" {
		t.Errorf("it describes %v, %v", described, err)
	}
	names := map[string]bool{}
	for _, p := range bill.Packages {
		names[p.PackageName] = true
	}
	for _, want := range []string{"railctl (" + runtime.GOARCH + ")", "stdlib", "github.com/spf13/cobra"} {
		if !names[want] {
			t.Errorf("it lacks %s", want)
		}
	}
	bill.Relationships[0].RefB.ElementRefID = "nothing"
	if spdxlib.ValidateDocument(bill) == nil {
		t.Error("a bill of which a relationship leads nowhere is valid too")
	}
}

// packages makes the packages of railctl for this architecture.
func packages(t *testing.T, programs string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "package")
	run(t, []string{"PROGRAMS=" + programs, "PACKAGES=" + out, "SOURCE_DATE_EPOCH=1796000000"}, "scripts/package.sh", version, runtime.GOARCH)
	return out
}

// TestPackageInstallsAndRuns installs the package into a directory with dpkg, and runs what is there.
func TestPackageInstallsAndRuns(t *testing.T) {
	for _, program := range []string{"dpkg", "dpkg-deb"} {
		_, err := need.Installed(program, "dpkg")
		need.NoError(t, err)
	}
	built := programs(t, "railctl")
	out := packages(t, built)
	deb := filepath.Join(out, "rail-cni-tools_0.1.0_"+runtime.GOARCH+".deb")
	for field, want := range map[string]string{"Package": "rail-cni-tools", "Version": "0.1.0", "Architecture": runtime.GOARCH} {
		if have := strings.TrimSpace(run(t, nil, "dpkg-deb", "--field", deb, field)); have != want {
			t.Errorf("%s is %q, want %q", field, have, want)
		}
	}
	root := filepath.Join(t.TempDir(), "root")
	for _, dir := range []string{"updates", "info", "triggers"} {
		if err := os.MkdirAll(filepath.Join(root, "var/lib/dpkg", dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "var/lib/dpkg/status"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	need.Root(t) // dpkg changes owners
	run(t, nil, "dpkg", "--root="+root, "--log=/dev/null", "--force-not-root", "--install", deb)
	if have, want := strings.TrimSpace(run(t, nil, "dpkg-deb", "--field", deb, "Installed-Size")), installedSize(t, root); have != want {
		t.Errorf("Installed-Size is %s, want %s", have, want)
	}
	for _, path := range []string{"usr/bin/railctl", "usr/bin/kubectl-rail"} {
		if have := run(t, nil, filepath.Join(root, path), "version"); !strings.HasPrefix(have, "rail") {
			t.Errorf("%s version prints %q", path, have)
		}
	}
	path := []string{"PATH=" + filepath.Join(root, "usr/bin") + ":" + os.Getenv("PATH")}
	if have := run(t, path, filepath.Join(root, "usr/bin/kubectl_complete-rail"), "doc"); !strings.HasPrefix(have, "doctor\t") {
		t.Errorf("kubectl completes doc as %q", have)
	}
	for _, shell := range []string{
		"bash-completion/completions/railctl", "zsh/vendor-completions/_railctl", "fish/vendor_completions.d/railctl.fish",
	} {
		if text := readFile(t, filepath.Join(root, "usr/share", shell)); !bytes.Contains(text, []byte("railctl")) {
			t.Errorf("%s completes no railctl", shell)
		}
	}
	for page, want := range map[string]string{
		"railctl.1.gz": `.TH "RAILCTL" "1" "Nov 2026"`, "railctl-doctor-cluster.1.gz": "--kubeconfig", "kubectl-rail.1.gz": "railctl",
	} {
		z, err := gzip.NewReader(bytes.NewReader(readFile(t, filepath.Join(root, "usr/share/man/man1", page))))
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(z); err != nil || !strings.Contains(strings.ReplaceAll(string(text), `\-`, "-"), want) {
			t.Errorf("%s lacks %q, %v", page, want, err)
		}
	}
	run(t, nil, "dpkg", "--root="+root, "--log=/dev/null", "--force-not-root", "--purge", "rail-cni-tools")
	if _, err := os.Lstat(filepath.Join(root, "usr/bin/railctl")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the removal: %v", err)
	}

	krew(t, out)
	again := packages(t, built)
	for _, name := range []string{filepath.Base(deb), "rail.yaml", "kubectl-rail_" + version + "_linux_" + runtime.GOARCH + ".tar.gz"} {
		if !bytes.Equal(readFile(t, filepath.Join(out, name)), readFile(t, filepath.Join(again, name))) {
			t.Errorf("%s is another file when it is made again", name)
		}
	}
}

// installedSize returns the size of /usr below root in KiB, as section 5.6.20 of Debian's policy counts it: a file
// is rounded up, and anything else is 1.
func installedSize(t *testing.T, root string) string {
	t.Helper()
	var kib int64
	err := filepath.WalkDir(filepath.Join(root, "usr"), func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if info.Mode().IsRegular() {
			kib += (info.Size() + 1023) / 1024
		} else {
			kib++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strconv.FormatInt(kib, 10)
}

// krew checks the archive by the manifest, as krew does when it installs.
func krew(t *testing.T, dir string) {
	t.Helper()
	manifest := string(readFile(t, filepath.Join(dir, "rail.yaml")))
	m := regexp.MustCompile(`(?m)^    uri: .*/` + version + `/(\S+)\n    sha256: (\S+)$`).FindStringSubmatch(manifest)
	if m == nil {
		t.Fatalf("the manifest has no archive of %s:\n%s", version, manifest)
	}
	text := readFile(t, filepath.Join(dir, m[1]))
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != m[2] {
		t.Errorf("%s has the checksum %x, the manifest says %s", m[1], sum, m[2])
	}
	z, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	if !slices.Equal(names, []string{"LICENSE", "kubectl-rail"}) {
		t.Errorf("%s has %v", m[1], names)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestPublishedImageAndChartCanBePulled pushes image and chart to a registry, and reads them
// from there as a node and as helm do.
func TestPublishedImageAndChartCanBePulled(t *testing.T) {
	helm, err := filepath.Abs(filepath.Join(os.Getenv("RAIL_CNI_BIN"), "tools", "helm"))
	if err != nil {
		t.Fatal(err)
	}
	need.NoError(t, need.Built(helm, "tools"))
	_, err = need.Installed("skopeo", "skopeo")
	need.NoError(t, err)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://") + "/rail-cni"

	files := packed(t)
	digest := strings.TrimSpace(string(readFile(t, filepath.Join(files, "rail-cni-"+version+".digest"))))
	charts := t.TempDir()
	run(t, []string{"HELM=" + helm, "IMAGE=" + host + "/rail-cni", "DIGEST=" + digest, "CHARTS=" + charts}, "scripts/chart.sh", version, "0.1.0")
	run(t, nil, "cp", filepath.Join(charts, "rail-cni-0.1.0.tgz"), files)
	run(t, nil, "sh", "-c", `cd "$0" && sha256sum -- * >SHA256SUMS`, files)
	signed := filepath.Join(t.TempDir(), "signed")
	env := []string{
		"HELM=" + helm, "PLAIN=yes", "FILES=" + files, "HELM_REGISTRY_CONFIG=" + filepath.Join(t.TempDir(), "none"),
		"COSIGN=" + asks(t, signed),
	}
	out := run(t, env, "scripts/publish.sh", version, host)
	if !strings.HasSuffix(out, host+"/rail-cni@"+digest+"\n") {
		t.Errorf("it prints %s", out)
	}

	// The image has the digest that make image printed, and each blob of it its own.
	ref, err := name.ParseReference(host+"/rail-cni:"+version, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(ref)
	if err != nil {
		t.Fatal(err)
	}
	if have, err := index.Digest(); err != nil || have.String() != digest {
		t.Errorf("the digest in the registry is %v, %v", have, err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	// The chart installs that image without further values, and shows it.
	chart := []string{"oci://" + host + "/charts/rail-cni", "--version", "0.1.0", "--plain-http"}
	objects := run(t, nil, append([]string{helm, "template", "rail-cni", "--kube-version", "1.31.0", "--namespace", "kube-system"}, chart...)...)
	for _, image := range regexp.MustCompile(`(?m)^ *image: (.*)$`).FindAllStringSubmatch(objects, -1) {
		if want := host + "/rail-cni@" + digest; image[1] != want {
			t.Errorf("the chart installs %s, not %s", image[1], want)
		}
	}
	shown := run(t, nil, append([]string{helm, "show", "chart"}, chart...)...)
	if want := "image: " + host + "/rail-cni:" + version + "\n"; !strings.Contains(shown, want) || strings.Count(shown, "image: ") != 1 {
		t.Errorf("the chart shows other images than %q:\n%s", want, shown)
	}

	// Both are signed by their digests.
	ref, err = name.ParseReference(host+"/charts/rail-cni:0.1.0", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := remote.Get(ref)
	if err != nil {
		t.Fatal(err)
	}
	calls := string(readFile(t, signed))
	for _, want := range []string{host + "/rail-cni@" + digest, host + "/charts/rail-cni@" + manifest.Digest.String()} {
		if !strings.Contains(calls, "sign --yes "+want+"\n") {
			t.Errorf("%s is not signed:\n%s", want, calls)
		}
	}
}

// asks returns a command in place of cosign, which writes what it is asked for into a file.
func asks(t *testing.T, file string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cosign")
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho \"$*\" >>"+file+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestChartWithOtherLinesIsNotPacked takes the line of the image from the chart.
func TestChartWithOtherLinesIsNotPacked(t *testing.T) {
	for file, line := range map[string]string{
		"Chart.yaml": "      image: localhost/rail-cni:devel", "values.yaml": "  repository: localhost/rail-cni",
	} {
		dir := t.TempDir()
		run(t, nil, "cp", "-r", "--parents", "scripts/chart.sh", "deployments/helm/rail-cni", dir)
		path := filepath.Join(dir, "deployments/helm/rail-cni", file)
		text := string(readFile(t, path))
		if strings.Count(text, "\n"+line) != 1 {
			t.Fatalf("%s has no %q", file, line)
		}
		if err := os.WriteFile(path, []byte(strings.Replace(text, line, line+"2", 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(filepath.Join(dir, "scripts/chart.sh"), version, "0.1.0")
		cmd.Env = append(os.Environ(), "HELM=true", "IMAGE=registry.example/rail-cni/rail-cni", "CHARTS="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), file+" of the chart must have one line") {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}
}
