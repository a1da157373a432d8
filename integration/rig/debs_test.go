package rig

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// archiveOf puts an apt-get before the machine's, which has one package and notes its
// downloads in a file.
func archiveOf(t *testing.T, file, content string) (downloads func() int) {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "downloads")
	script := fmt.Sprintf(`#!/bin/sh
case "$*" in
*--print-uris*) echo "'http://deb.example/pool/%[1]s' %[1]s 9 SHA256:%[2]x" ;;
*download*) printf %%s '%[3]s' >%[1]s && echo >>%[4]s ;;
esac
`, file, sha256.Sum256([]byte(content)), content, log)
	if err := os.WriteFile(filepath.Join(dir, "apt-get"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() int {
		text, err := os.ReadFile(log)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.Count(string(text), "\n")
	}
}

func TestAPackageIsDownloadedOnceForAllCheckouts(t *testing.T) {
	kept := t.TempDir()
	t.Setenv(PackagesVariable, kept)
	downloads := archiveOf(t, "linux_1%3a6.12_amd64.deb", "a package")
	fetch := func() {
		t.Helper()
		b := &builder{root: t.TempDir(), cache: t.TempDir()} // a new checkout
		files, err := b.download(t.Context(), "linux")
		if err != nil {
			t.Fatal(err)
		}
		if len(files) != 1 || filepath.Dir(files[0]) != kept {
			t.Fatalf("downloaded %v, want one file in %s", files, kept)
		}
		if text, err := os.ReadFile(files[0]); err != nil || string(text) != "a package" {
			t.Errorf("%q, %v", text, err)
		}
	}
	fetch()
	fetch()
	if n := downloads(); n != 1 {
		t.Errorf("two checkouts made %d downloads, want 1", n)
	}
	// A file with other contents is not used.
	if err := os.WriteFile(filepath.Join(kept, "linux_1%3a6.12_amd64.deb"), []byte("a pack"), 0o644); err != nil {
		t.Fatal(err)
	}
	fetch()
	if n := downloads(); n != 2 {
		t.Errorf("after its file was damaged: %d downloads, want 2", n)
	}
}

func TestADownloadWithAnotherHashIsRefused(t *testing.T) {
	s := debs{t.TempDir()}
	from := filepath.Join(t.TempDir(), "x.deb")
	if err := os.WriteFile(from, []byte("not the package"), 0o644); err != nil {
		t.Fatal(err)
	}
	d := deb{"x.deb", "SHA256", fmt.Sprintf("%x", sha256.Sum256([]byte("the package")))}
	if err := s.put(d, from); err == nil || !strings.Contains(err.Error(), d.sum) {
		t.Errorf("put: %v, want an error with the archive's hash", err)
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}

func TestPackagesThatNobodyUsesAreRemoved(t *testing.T) {
	s := debs{t.TempDir()}
	now := time.Now()
	old := now.Add(-unused - time.Hour)
	content := []byte("the package")
	for _, name := range []string{"used.deb", "unused.deb", "killed.deb.new-123", "notes.txt"} {
		path := filepath.Join(s.dir, name)
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	if !s.has(deb{"used.deb", "SHA256", fmt.Sprintf("%x", sha256.Sum256(content))}) {
		t.Fatal("it does not have its package")
	}
	if err := tidy(s.dir, now, isDeb); err != nil {
		t.Fatal(err)
	}
	var left []string
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if got := strings.Join(left, " "); got != "notes.txt used.deb" {
		t.Errorf("left: %s", got)
	}
}

func TestModulesThatNoCheckoutUsesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	old := now.Add(-unused - time.Hour)
	for _, name := range []string{"module-a.ko", "module-b.ko", "softroce-a.ko", "softroce-b.why", "build.lock"} {
		if err := errors.Join(os.WriteFile(filepath.Join(dir, name), nil, 0o644), os.Chtimes(filepath.Join(dir, name), old, old)); err != nil {
			t.Fatal(err)
		}
	}
	if !used(filepath.Join(dir, "module-b.ko")) || used(filepath.Join(dir, "module-c.ko")) {
		t.Error("used does not tell a file that is there from one that is not")
	}
	if err := tidy(dir, now, isModule); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); fmt.Sprint(left) != fmt.Sprintf("[%[1]s/build.lock %[1]s/module-b.ko]", dir) {
		t.Errorf("left: %v", left)
	}
}

func TestAptsListOfDownloadsIsRead(t *testing.T) {
	found, err := parseDebs("Reading lists…\n" +
		"'http://deb.debian.org/debian/pool/main/q/qemu/qemu-system-x86_7.2%2bdfsg_amd64.deb' qemu-system-x86_1%3a7.2+dfsg_amd64.deb 8 SHA256:0a1b\n" +
		"'http://deb.debian.org/debian/pool/main/s/systemd/udev_252.39-1%7edeb12u2_amd64.deb' udev_252.39-1~deb12u2_amd64.deb 17 SHA512:ff\n")
	want := []deb{{"qemu-system-x86_1%3a7.2+dfsg_amd64.deb", "SHA256", "0a1b"}, {"udev_252.39-1~deb12u2_amd64.deb", "SHA512", "ff"}}
	if err != nil || fmt.Sprint(found) != fmt.Sprint(want) {
		t.Errorf("%v, %v, want %v", found, err, want)
	}
	for _, bad := range []string{"", "'http://x/y.deb' y.deb 8 MD5Sum:0a\n", "'http://x/y.deb' ../y.deb 8 SHA256:0a\n"} {
		if found, err := parseDebs(bad); err == nil {
			t.Errorf("%q is read as %v", bad, found)
		}
	}
}
