package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// programs makes the directories of two architectures, and returns them.
func programs(t *testing.T) []string {
	t.Helper()
	top := t.TempDir()
	var dirs []string
	for _, arch := range []string{"amd64", "arm64"} {
		dir := filepath.Join(top, arch)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"rail-agent", "railctl", "macvlan", "rdma"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(name+" of "+arch), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		dirs = append(dirs, dir)
	}
	return dirs
}

func packed(t *testing.T, dirs []string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image.tar")
	if _, err := pack(out, "localhost/rail-cni", []string{"v1", "devel"}, dirs); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestSameProgramsMakeTheSameFile(t *testing.T) {
	dirs := programs(t)
	first := packed(t, dirs)
	later := time.Now().Add(time.Hour)
	for _, dir := range dirs {
		if err := errors.Join(os.Chtimes(filepath.Join(dir, "macvlan"), later, later), os.Chmod(filepath.Join(dir, "rdma"), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first, packed(t, dirs)) {
		t.Error("a file's time or mode changes the image")
	}
	if err := os.WriteFile(filepath.Join(dirs[1], "rdma"), []byte("another"), 0o755); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(first, packed(t, dirs)) {
		t.Error("a file's content does not change the image")
	}
}

// TestLayoutLeadsFromTheTagToTheFiles follows the digests, as a runtime does.
func TestLayoutLeadsFromTheTagToTheFiles(t *testing.T) {
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(packed(t, programs(t)))); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	blob := func(d descriptor) []byte {
		t.Helper()
		b := files["blobs/"+strings.Replace(d.Digest, ":", "/", 1)]
		if digest(b) != d.Digest || len(b) != d.Size {
			t.Fatalf("%s of %d bytes is %s of %d", d.Digest, d.Size, digest(b), len(b))
		}
		return b
	}
	decode := func(text []byte, into any) {
		t.Helper()
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(into); err != nil {
			t.Fatal(err)
		}
	}
	var top, index manifest
	decode(files["index.json"], &top)
	var names []string
	for _, d := range top.Manifests {
		names = append(names, d.Annotations["io.containerd.image.name"])
	}
	if !slices.Equal(names, []string{"localhost/rail-cni:v1", "localhost/rail-cni:devel"}) {
		t.Errorf("the names are %v", names)
	}
	decode(blob(top.Manifests[1]), &index)
	for i, arch := range []string{"amd64", "arm64"} {
		of := index.Manifests[i]
		if of.Platform == nil || *of.Platform != (platform{Architecture: arch, OS: "linux"}) {
			t.Errorf("%d is for %v", i, of.Platform)
		}
		var image manifest
		var c config
		decode(blob(of), &image)
		decode(blob(*image.Config), &c)
		if c.Architecture != arch || len(image.Layers) != 1 {
			t.Errorf("%+v, %+v", c, image)
		}
		z, err := gzip.NewReader(bytes.NewReader(blob(image.Layers[0])))
		if err != nil {
			t.Fatal(err)
		}
		plain, err := io.ReadAll(z)
		if err != nil || digest(plain) != c.RootFS.DiffIDs[0] {
			t.Fatal(err, digest(plain), c.RootFS)
		}
		have := map[string]string{}
		for r := tar.NewReader(bytes.NewReader(plain)); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			have["/"+h.Name] = string(text) + h.Linkname
			if h.Typeflag == tar.TypeReg && h.Mode != 0o755 {
				t.Errorf("%s has the mode %o", h.Name, h.Mode)
			}
		}
		for path, want := range map[string]string{
			c.Config.Entrypoint[0]: "rail-agent of " + arch, "/railctl": "railctl of " + arch, "/plugins/macvlan": "macvlan of " + arch,
			"/plugins/rdma": "rdma of " + arch, "/var/run/netns": "/run/netns",
		} {
			if have[path] != want {
				t.Errorf("%s is %q", path, have[path])
			}
		}
	}
}

func TestWhatIsMissingIsSaid(t *testing.T) {
	out := filepath.Join(t.TempDir(), "image.tar")
	for _, err := range []error{
		run("", "x", []string{"v1"}, programs(t)), run(out, "x", []string{""}, programs(t)), run(out, "x", []string{"v1"}, nil),
		run(out, "x", []string{"v1"}, []string{filepath.Join(t.TempDir(), "none")}),
	} {
		if err == nil {
			t.Error("it was packed")
		}
	}
}
