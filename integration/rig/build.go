package rig

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/integration/scratch"
)

// Image is what a machine boots.
type Image struct {
	Kernel string // file: the uncompressed kernel
	Base   string // file: the file system of every run, a cpio archive
	nics   string // kind of the machine's NICs
	arch   *arch  // of the machine
	qemu   emulator
	accel  accelerator // see [Image.Accelerate]
	// functions is set if the machine has a NIC with virtual functions of the kernel's
	// own driver.
	functions bool
}

// Options choose the machine.
type Options struct {
	Linux string // the kernel's series; "" for the usual one, see README.md
	// IGB: the NIC with virtual functions is QEMU's igb, behind an IOMMU, in place of the fake
	// one. Other series have it in any case.
	IGB bool
}

// FindRoot returns the top of the checkout that dir is in.
func FindRoot(dir string) (string, error) {
	for root := dir; ; root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "integration", "rig", "module", "Kbuild")); err == nil {
			return root, nil
		}
		if root == filepath.Dir(root) {
			return "", fmt.Errorf("%s is not in a checkout of rail-cni", dir)
		}
	}
}

// cacheDir returns the directory in which a checkout keeps what [Build] made for it alone.
func cacheDir(root string) string { return filepath.Join(root, ".cache", "rig") }

// shared returns a directory that all checkouts of a user have in common, or, for a user
// without a cache directory, one of this checkout.
func shared(root, name string) string {
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "rail-cni", name)
	}
	return filepath.Join(cacheDir(root), name)
}

type builder struct {
	series
	igb    bool   // see [Options]
	root   string // of the checkout
	cache  string // of the checkout: what its own sources make at each change
	shared string // kernels, modules and unpacked packages, each named by what it is made of
	log    io.Writer
}

// Build makes the image of a machine, or the parts of it that are missing or were made
// from other inputs. It reports slow steps on log. Concurrent callers hold the
// lock of [LockBuild].
func Build(ctx context.Context, root string, o Options, log io.Writer) (*Image, error) {
	if runtime.GOARCH != "amd64" || os.Geteuid() != 0 {
		return nil, errors.New("the rig needs root, on an amd64 machine")
	}
	s, err := seriesOf(o.Linux)
	if err != nil {
		return nil, err
	}
	b := &builder{series: s, igb: o.IGB, root: root, cache: cacheDir(root), shared: shared(root, "rig"), log: log}
	if err := errors.Join(os.MkdirAll(b.cache, 0o755), os.MkdirAll(b.shared, 0o755)); err != nil {
		return nil, err
	}
	if err := b.need(ctx, append(slices.Clone(needed), b.arch.needed...)); err != nil {
		return nil, err
	}
	qemu, err := b.emulator(ctx)
	if err != nil {
		return nil, fmt.Errorf("the rig's QEMU: %w", err)
	}
	k, err := b.kernel(ctx)
	if err != nil {
		return nil, fmt.Errorf("the rig's kernel: %w", err)
	}
	module := ""
	if b.nics == fakeNICs {
		if module, err = b.module(ctx, k); err != nil {
			return nil, fmt.Errorf("the rig's kernel module: %w", err)
		}
	}
	base, err := b.base(ctx, k, module)
	if err != nil {
		return nil, fmt.Errorf("the rig's file system: %w", err)
	}
	return &Image{Kernel: k.image(), Base: base, nics: b.nics, arch: &b.arch, qemu: qemu, functions: b.functions()}, nil
}

// kernel is an unpacked kernel of Debian.
type kernel struct{ version, dir string }

func (k kernel) image() string { return filepath.Join(k.dir, "vmlinux") }
func (k kernel) headers() string {
	return filepath.Join(k.dir, "usr", "src", "linux-headers-"+k.version)
}

// kernel returns the kernel in the cache. The archive moves on; the cache keeps
// the kernel that was newest when it was made.
func (b *builder) kernel(ctx context.Context) (kernel, error) {
	prefix := "kernel-"
	if b.linux == newest { // its pattern matches the kernels of the other series
		prefix += newest + "-"
	}
	images, err := filepath.Glob(filepath.Join(b.shared, prefix+"*", "vmlinux"))
	if err != nil {
		return kernel{}, err
	}
	images = slices.DeleteFunc(images, func(path string) bool {
		version := strings.TrimPrefix(filepath.Base(filepath.Dir(path)), prefix)
		return !b.image.MatchString("linux-image-" + version)
	})
	if len(images) > 0 {
		dir := filepath.Dir(slices.Max(images))
		return kernel{strings.TrimPrefix(filepath.Base(dir), prefix), dir}, nil
	}
	version, err := b.newestKernel(ctx)
	if err != nil {
		return kernel{}, err
	}
	k := kernel{version, filepath.Join(b.shared, prefix+version)}
	fmt.Fprintf(b.log, "rig: unpacking Linux %s (about 120 MB of Debian packages, once for all checkouts) …\n", version)
	if err := os.RemoveAll(k.dir); err != nil { // of an attempt that was killed
		return k, err
	}
	if err := os.MkdirAll(k.dir, 0o755); err != nil {
		return k, err
	}
	packages := []string{"linux-image-" + version}
	if b.nics == fakeNICs {
		short := strings.TrimSuffix(version, "-amd64")
		packages = append(packages, "linux-headers-"+version, "linux-headers-"+short+"-common", "linux-kbuild-"+short)
	}
	if err := b.unpack(ctx, k.dir, packages...); err != nil {
		return k, err
	}
	if err := k.prepare(ctx, b.nics == fakeNICs); err != nil {
		return k, err
	}
	// Last, because its presence marks a complete kernel.
	return k, k.extract(ctx)
}

// prepare makes the unpacked packages work in place, with headers or without.
func (k kernel) prepare(ctx context.Context, headers bool) error {
	// From Debian 13 on the packages have no /lib, where it is a symlink.
	lib := filepath.Join(k.dir, "lib")
	if _, err := os.Lstat(lib); errors.Is(err, os.ErrNotExist) {
		if err := os.Symlink("usr/lib", lib); err != nil {
			return err
		}
	}
	if headers {
		makefile := filepath.Join(k.headers(), "Makefile")
		text, err := os.ReadFile(makefile)
		if err != nil {
			return err
		}
		text = bytes.ReplaceAll(text, []byte("/usr/src/"), []byte("../"))
		if err := os.WriteFile(makefile, text, 0o644); err != nil {
			return err
		}
	}
	_, err := run(ctx, "", "depmod", "-b", k.dir, k.version)
	return err
}

// extract extracts the kernel from the compressed image. QEMU boots it by PVH,
// which saves the second that unpacking takes on an emulated CPU. The image for
// arm64 is not compressed (Documentation/arch/arm64/booting.rst).
func (k kernel) extract(ctx context.Context) error {
	compressed, err := os.ReadFile(filepath.Join(k.dir, "boot", "vmlinuz-"+k.version))
	if err != nil {
		return err
	}
	if len(compressed) > 60 && string(compressed[56:60]) == "ARMd" {
		return writeAtomically(k.image(), compressed)
	}
	for _, c := range []struct{ program, magic string }{{"zstd", "\x28\xb5\x2f\xfd"}, {"xz", "\xfd7zXZ\x00"}} {
		begin := bytes.Index(compressed, []byte(c.magic))
		if begin < 0 {
			continue
		}
		var image bytes.Buffer
		cmd := exec.CommandContext(ctx, c.program, "-dc")
		cmd.Stdin, cmd.Stdout = bytes.NewReader(compressed[begin:]), &image
		// It fails at the data after the kernel in the file, when it is done.
		_ = cmd.Run()
		if bytes.HasPrefix(image.Bytes(), []byte("\x7fELF")) {
			return writeAtomically(k.image(), image.Bytes())
		}
	}
	return errors.New("the image has no kernel that is compressed with zstd or xz")
}

func writeAtomically(path string, content []byte) error {
	if err := os.WriteFile(path+".new", content, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// module builds the kernel module, unless the cache has one of the same sources
// for the same kernel.
func (b *builder) module(ctx context.Context, k kernel) (string, error) {
	sources, err := filepath.Glob(b.source("module/*"))
	if err != nil {
		return "", err
	}
	hash, err := hashOf(sources, k.version)
	if err != nil {
		return "", err
	}
	built := filepath.Join(b.shared, "module-"+hash+".ko")
	if used(built) {
		return built, nil
	}
	fmt.Fprintf(b.log, "rig: building the kernel module (its sources or the kernel are new) …\n")
	work, err := scratch.MkdirTemp("rig-module")
	if err != nil {
		return "", err
	}
	defer scratch.Remove(work)
	for _, s := range sources {
		text, err := os.ReadFile(s)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(work, filepath.Base(s)), text, 0o644); err != nil {
			return "", err
		}
	}
	// Without BTF: the kernel does not require it, and it needs pahole.
	if _, err := run(ctx, "", "make", "-s", "-C", k.headers(), "M="+work, "CONFIG_DEBUG_INFO_BTF_MODULES=", "KCFLAGS=-Werror", "modules"); err != nil {
		return "", err
	}
	object, err := os.ReadFile(filepath.Join(work, "fakerdma.ko"))
	if err != nil {
		return "", err
	}
	return built, errors.Join(tidy(b.shared, time.Now(), isModule), writeAtomically(built, object))
}

// isModule reports whether a file of the shared directory is a kernel module, or says why
// there is none.
func isModule(name string) bool {
	return strings.HasPrefix(name, "module-") || strings.HasPrefix(name, "softroce-")
}

// forget removes from the checkout's cache the files that something newer replaces.
func (b *builder) forget(pattern string) error {
	old, err := filepath.Glob(filepath.Join(b.cache, pattern))
	for _, f := range old {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}

// hashOf returns a short name for these files' contents and words.
func hashOf(files []string, words ...string) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%q\n", words)
	for _, f := range files {
		content, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", filepath.Base(f), len(content))
		h.Write(content)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8]), nil
}
