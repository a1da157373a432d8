package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Images that each node has.
const (
	// ToolsImage has a shell, busybox' programs, and iproute2's ip. Its entry
	// point sleeps until it gets a signal.
	ToolsImage = "localhost/tools:1"
	// BusyboxImage has busybox alone, under the name by which nodes with a registry
	// pull it: the pods of examples/try run here and there.
	BusyboxImage = "docker.io/library/busybox:stable"
	// PauseImage is that of sandboxes.
	PauseImage = "localhost/pause:1"
)

// Image is a container image of one layer.
type Image struct {
	Name       string // with its tag
	Entrypoint []string
	// Files maps paths in the image to paths on the machine. Permissions are
	// kept, owners are not.
	Files map[string]string
	// Links maps symbolic links in the image to their targets.
	Links map[string]string
}

// Write writes the image as a docker archive (`docker save`; image-spec of
// moby, version 1.2). The same image gets the same bytes.
func (i Image) Write(w io.Writer) error {
	layer, err := i.layer()
	if err != nil {
		return err
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(layer))
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "created": time.Unix(0, 0).UTC(),
		"config": map[string]any{"Entrypoint": i.Entrypoint, "Env": []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, "WorkingDir": "/"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sum}},
	})
	if err != nil {
		return err
	}
	configName := fmt.Sprintf("%x.json", sha256.Sum256(config))
	manifest, err := json.Marshal([]any{map[string]any{"Config": configName, "RepoTags": []string{i.Name}, "Layers": []string{sum + "/layer.tar"}}})
	if err != nil {
		return err
	}
	out := tar.NewWriter(w)
	for _, file := range []struct {
		name string
		data []byte
	}{{configName, config}, {sum + "/layer.tar", layer}, {"manifest.json", manifest}} {
		if err := add(out, tar.Header{Name: file.name, Mode: 0o644}, file.data); err != nil {
			return err
		}
	}
	return out.Close()
}

// layer returns the image's files as a tar archive.
func (i Image) layer() ([]byte, error) {
	entries := map[string]tar.Header{}
	put := func(name string, h tar.Header) {
		h.Name = strings.TrimPrefix(name, "/")
		entries[h.Name] = h
		for dir := path.Dir(h.Name); dir != "."; dir = path.Dir(dir) {
			if _, ok := entries[dir]; !ok {
				entries[dir] = tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755}
			}
		}
	}
	for _, dir := range []string{"dev", "etc", "proc", "root", "run", "sys", "var"} {
		put(dir, tar.Header{Typeflag: tar.TypeDir, Mode: 0o755})
	}
	put("tmp", tar.Header{Typeflag: tar.TypeDir, Mode: 0o1777})
	data := map[string][]byte{}
	for name, source := range i.Files {
		text, err := os.ReadFile(source)
		if err != nil {
			return nil, err
		}
		info, err := os.Stat(source)
		if err != nil {
			return nil, err
		}
		put(name, tar.Header{Typeflag: tar.TypeReg, Mode: int64(info.Mode().Perm())})
		data[strings.TrimPrefix(name, "/")] = text
	}
	for name, target := range i.Links {
		put(name, tar.Header{Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: target})
	}
	names := make([]string, 0, len(entries))
	for name := range entries {
		names = append(names, name)
	}
	slices.Sort(names) // a directory before what is in it
	var layer bytes.Buffer
	out := tar.NewWriter(&layer)
	for _, name := range names {
		if err := add(out, entries[name], data[name]); err != nil {
			return nil, err
		}
	}
	return layer.Bytes(), out.Close()
}

func add(out *tar.Writer, h tar.Header, data []byte) error {
	h.Size = int64(len(data))
	if err := out.WriteHeader(&h); err != nil {
		return err
	}
	_, err := out.Write(data)
	return err
}

// WriteFile writes the image's archive to a file.
func (i Image) WriteFile(file string) error {
	var archive bytes.Buffer
	if err := i.Write(&archive); err != nil {
		return err
	}
	return os.WriteFile(file, archive.Bytes(), 0o600)
}

// AddProgram adds a program of the machine under its own path, with the
// libraries that it is linked with.
func (i *Image) AddProgram(name string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	i.Files[path] = path
	libraries, err := output(exec.Command("ldd", path))
	if err != nil {
		return err
	}
	for word := range strings.FieldsSeq(libraries) {
		if strings.HasPrefix(word, "/") {
			i.Files[word] = word
		}
	}
	return nil
}

// baseImages writes the images that each node has, and returns the paths of
// their archives.
func (c *Cluster) baseImages() ([]string, error) {
	busybox := filepath.Join(c.files.runtime, "busybox")
	pause := Image{Name: PauseImage, Entrypoint: []string{"/bin/busybox", "sleep", "2147483647"}, Files: map[string]string{"/bin/busybox": busybox}}
	tools := Image{
		Name: ToolsImage, Files: map[string]string{"/bin/busybox": busybox}, Links: map[string]string{},
		Entrypoint: []string{"/bin/sh", "-c", "trap exit TERM; while :; do sleep 1; done"},
	}
	box := Image{Name: BusyboxImage, Entrypoint: []string{"/bin/sh"}, Files: map[string]string{"/bin/busybox": busybox}, Links: map[string]string{}}
	applets, err := output(exec.Command(busybox, "--list"))
	if err != nil {
		return nil, err
	}
	for applet := range strings.FieldsSeq(applets) {
		if applet == "busybox" {
			continue
		}
		box.Links["/bin/"+applet] = "busybox"
		if applet != "ip" { // the tools have iproute2's
			tools.Links["/bin/"+applet] = "busybox"
		}
	}
	if err := tools.AddProgram("ip"); err != nil {
		return nil, err
	}
	var archives []string
	for _, image := range []Image{pause, tools, box} {
		archive := filepath.Join(c.dir, strings.NewReplacer("/", "-", ":", "-").Replace(image.Name)+".tar")
		if err := image.WriteFile(archive); err != nil {
			return nil, err
		}
		archives = append(archives, archive)
	}
	return archives, nil
}
