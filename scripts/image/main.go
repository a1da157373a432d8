package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	name := flag.String("name", "localhost/rail-cni", "the image's name, without a tag")
	tags := flag.String("tags", "", "its tags, with commas between; the first is its version")
	out := flag.String("out", "", "file to write; the bill of materials goes beside it, as .spdx.json")
	flag.Parse()
	if err := run(*out, *name, strings.Split(*tags, ","), flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// run packs the image, and writes its bill of materials and its digest.
func run(out, name string, tags, dirs []string) error {
	digest, err := pack(out, name, tags, dirs)
	if err != nil {
		return err
	}
	bill := strings.TrimSuffix(out, ".tar") + ".spdx.json"
	if err := writeSBOM(bill, name, tags[0], digest, dirs); err != nil {
		return err
	}
	if err := os.WriteFile(strings.TrimSuffix(out, ".tar")+".digest", []byte(digest+"\n"), 0o644); err != nil {
		return err
	}
	fmt.Printf("%s: %s with the tags %s\n%s: what it is made of\n%s@%s\n", out, name, strings.Join(tags, " and "), bill, name, digest)
	return nil
}

// pack writes the layout, and returns the image's digest.
func pack(out, name string, tags, dirs []string) (string, error) {
	if out == "" || tags[0] == "" || len(dirs) == 0 {
		return "", errors.New("-out, -tags and a directory for each architecture are needed")
	}
	l := layout{blobs: map[string][]byte{}}
	var images []descriptor
	for _, dir := range dirs {
		image, err := l.image(dir, tags[0])
		if err != nil {
			return "", err
		}
		images = append(images, image)
	}
	index := l.put(typeIndex, marshal(manifest{SchemaVersion: 2, MediaType: typeIndex, Manifests: images}))
	var named []descriptor
	for _, tag := range tags {
		// containerd reads the name from the first annotation, others from the
		// second.
		index.Annotations = map[string]string{"io.containerd.image.name": name + ":" + tag, "org.opencontainers.image.ref.name": tag}
		named = append(named, index)
	}
	f, err := os.Create(out)
	if err != nil {
		return "", err
	}
	if err := l.write(f, marshal(manifest{SchemaVersion: 2, MediaType: typeIndex, Manifests: named})); err != nil {
		return "", fmt.Errorf("%s: %w", out, err)
	}
	return index.Digest, f.Close()
}

// Media types of OCI image-spec v1.1.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// manifest is an image's, or an index of them.
type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        *descriptor  `json:"config,omitempty"`
	Layers        []descriptor `json:"layers,omitempty"`
	Manifests     []descriptor `json:"manifests,omitempty"`
}

type config struct {
	platform
	Config struct {
		Entrypoint []string          `json:"Entrypoint"`
		WorkingDir string            `json:"WorkingDir"`
		Labels     map[string]string `json:"Labels"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// layout is the content of the tar file, by digest.
type layout struct{ blobs map[string][]byte }

func (l *layout) put(mediaType string, blob []byte) descriptor {
	d := digest(blob)
	l.blobs[d] = blob
	return descriptor{MediaType: mediaType, Digest: d, Size: len(blob)}
}

func digest(blob []byte) string {
	sum := sha256.Sum256(blob)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// marshal cannot fail on these types.
func marshal(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

// image adds the image of one architecture.
func (l *layout) image(dir, version string) (descriptor, error) {
	var plain bytes.Buffer
	if err := files(&plain, dir); err != nil {
		return descriptor{}, err
	}
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return descriptor{}, err
	}
	if _, err := z.Write(plain.Bytes()); err != nil {
		return descriptor{}, err
	}
	if err := z.Close(); err != nil {
		return descriptor{}, err
	}
	c := config{platform: platform{Architecture: filepath.Base(dir), OS: "linux"}}
	c.Config.Entrypoint, c.Config.WorkingDir = []string{"/rail-agent"}, "/"
	c.Config.Labels = map[string]string{"org.opencontainers.image.title": "rail-cni", "org.opencontainers.image.version": version, "org.opencontainers.image.licenses": "Apache-2.0"}
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{digest(plain.Bytes())}
	config := l.put(typeConfig, marshal(c))
	image := l.put(typeManifest, marshal(manifest{SchemaVersion: 2, MediaType: typeManifest, Config: &config, Layers: []descriptor{l.put(typeLayer, packed.Bytes())}}))
	image.Platform = &c.platform
	return image, nil
}

// commands are in the root directory, all other programs are plugins.
var commands = []string{"rail-agent", "railctl"}

// links map paths below /var/run, as pods' records name them, to the node's. A
// link of /var/run as a whole would mount the pod's own secrets into the node's
// /run.
var links = map[string]string{
	"var/run/netns":           "/run/netns",
	"var/run/docker":          "/run/docker",
	"var/run/k8s.cni.cncf.io": "/run/k8s.cni.cncf.io",
	"var/run/rail-cni":        "/run/rail-cni",
}

// files writes the image's root.
func files(w io.Writer, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	t := tar.NewWriter(w)
	var headers []*tar.Header
	for _, d := range []string{"plugins/", "var/", "var/run/"} {
		headers = append(headers, &tar.Header{Typeflag: tar.TypeDir, Name: d, Mode: 0o755})
	}
	for name, to := range links {
		headers = append(headers, &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777})
	}
	content := map[string][]byte{}
	for _, e := range entries {
		name := "plugins/" + e.Name()
		if slices.Contains(commands, e.Name()) {
			name = e.Name()
		}
		if content[name], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
		headers = append(headers, &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(content[name]))})
	}
	slices.SortFunc(headers, func(a, b *tar.Header) int { return strings.Compare(a.Name, b.Name) })
	for _, h := range headers {
		h.Format = tar.FormatUSTAR
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(content[h.Name]); err != nil {
			return err
		}
	}
	return t.Close()
}

// write writes the layout as a tar file.
func (l *layout) write(w io.Writer, index []byte) error {
	all := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`), "index.json": index}
	for d, blob := range l.blobs {
		all["blobs/"+strings.Replace(d, ":", "/", 1)] = blob
	}
	names := []string{}
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	t := tar.NewWriter(w)
	for _, d := range []string{"blobs/", "blobs/sha256/"} {
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d, Mode: 0o755, Format: tar.FormatUSTAR}); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(all[name])), Format: tar.FormatUSTAR}); err != nil {
			return err
		}
		if _, err := t.Write(all[name]); err != nil {
			return err
		}
	}
	return t.Close()
}
