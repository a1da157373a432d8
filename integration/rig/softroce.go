package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/integration/scratch"
)

// Soft-RoCE is the one RDMA driver with a data path without hardware. The
// kernel's cannot be used with network namespaces: ours is built from the same
// sources and module/rxe.patch.

// softRoCETools are the programs of tests with Soft-RoCE, and their packages.
var softRoCETools = []string{"ib_write_bw:perftest", "ucx_info:ucx-utils", "ibv_rc_pingpong:ibverbs-utils,ibverbs-providers", "patch:patch", "strip:binutils"}

// softRoCERetry is the pause after a failed build of Soft-RoCE: each machine's
// start would try it again.
const softRoCERetry = time.Hour

// softRoCE returns the module, built again if its patch or the kernel is new.
// The rig works without it: the error is the reason.
func (b *builder) softRoCE(ctx context.Context, k kernel) (module string, err error) {
	patch := b.source("module/rxe.patch")
	hash, err := hashOf([]string{patch}, k.version)
	if err != nil {
		return "", err
	}
	module = filepath.Join(b.shared, "softroce-"+hash+".ko")
	why := filepath.Join(b.shared, "softroce-"+hash+".why")
	if failed, err := os.Stat(why); err == nil && time.Since(failed.ModTime()) < softRoCERetry {
		text, err := os.ReadFile(why)
		return "", errors.Join(err, errors.New(string(text)))
	}
	err = b.need(ctx, softRoCETools)
	if err == nil && !used(module) {
		err = errors.Join(tidy(b.shared, time.Now(), isModule), b.buildSoftRoCE(ctx, k, patch, module))
	}
	if err != nil && ctx.Err() == nil {
		err = errors.Join(err, writeAtomically(why, []byte(err.Error())))
	}
	return module, err
}

func (b *builder) buildSoftRoCE(ctx context.Context, k kernel, patch, module string) error {
	sources, err := b.softRoCESources(ctx, k)
	if err != nil {
		return err
	}
	fmt.Fprintf(b.log, "rig: building Soft-RoCE for network namespaces (the kernel's, patched) …\n")
	work, err := scratch.MkdirTemp("rig-softroce")
	if err != nil {
		return err
	}
	defer scratch.Remove(work)
	built := filepath.Join(work, "rdma_rxe.ko")
	for _, command := range [][]string{
		{"cp", "-rT", sources, work},
		{"patch", "-s", "-p1", "-i", patch},
		{"make", "-s", "-j2", "-C", k.headers(), "M=" + work, "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"},
		{"strip", "-g", built}, // nine tenths of it, which each machine would unpack
	} {
		if _, err := run(ctx, work, command[0], command[1:]...); err != nil {
			return err
		}
	}
	object, err := os.ReadFile(built)
	if err != nil {
		return err
	}
	return writeAtomically(module, object)
}

// softRoCESources returns the directory with the sources of the kernel's
// driver, which are cached beside the kernel.
func (b *builder) softRoCESources(ctx context.Context, k kernel) (string, error) {
	kept := filepath.Join(k.dir, "rxe")
	if _, err := os.Stat(kept); err == nil {
		return kept, nil
	}
	upstream, _, _ := strings.Cut(k.version, "+")
	name, version, err := sourcePackage(ctx, upstream)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(b.log, "rig: unpacking Soft-RoCE of the sources of Linux %s (150 MB of Debian packages, once for all checkouts) …\n", upstream)
	packages, err := b.download(ctx, name+"="+version)
	if err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(b.shared, "sources-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	const driver = "drivers/infiniband/sw/rxe"
	if _, err := run(ctx, work, "bash", "-euo", "pipefail", "-c", unpackMember, "unpack", packages[0], "./usr/src/"+name+".tar.xz", name+"/"+driver); err != nil {
		return "", err
	}
	return kept, os.Rename(filepath.Join(work, name, driver), kept)
}

// unpackMember unpacks a directory ($3) of an archive ($2) in a package ($1), and nothing else:
// the sources of a kernel are 1.6 GB.
const unpackMember = `dpkg-deb --fsys-tarfile "$1" | tar -xO "$2" | tar -xJ "$3"`

// sourcePackage asks apt for the package with the sources of a kernel version
// such as 6.12.117.
func sourcePackage(ctx context.Context, upstream string) (name, version string, err error) {
	series := strings.Join(strings.Split(upstream, ".")[:2], ".")
	name = "linux-source-" + series
	out, err := run(ctx, "", "apt-cache", "madison", name)
	if err != nil {
		return "", "", err
	}
	for line := range strings.Lines(string(out)) {
		// linux-source-6.12 | 6.12.117-1~deb12u1 | http://… Packages
		if f := strings.Fields(line); len(f) > 2 && strings.HasPrefix(f[2], upstream+"-") {
			return name, f[2], nil
		}
	}
	return "", "", fmt.Errorf("apt knows no package %s of version %s", name, upstream)
}

// addVerbs adds the programs for Soft-RoCE, and their libraries, to names.
func addVerbs(ctx context.Context, names map[string]string) error {
	// libibverbs loads its provider when it finds this file.
	const config = "/etc/libibverbs.d/rxe.driver"
	providers, err := filepath.Glob("/usr/lib/*/libibverbs/librxe-rdmav*.so")
	if err != nil {
		return err
	}
	if len(providers) != 1 {
		return fmt.Errorf("libibverbs has %d providers for Soft-RoCE (package ibverbs-providers), not one", len(providers))
	}
	for _, file := range []string{config, providers[0]} {
		names[file] = file
	}
	var errs []error
	for _, program := range []string{"ib_write_bw", "ib_write_lat", "ib_send_lat", "ibv_rc_pingpong", "ucx_info", "ucx_perftest"} {
		errs = append(errs, addProgram(ctx, names, "/", program))
	}
	// UCX loads its transports when it starts.
	transports, err := filepath.Glob("/usr/lib/*/ucx/libuct_ib.so.0")
	errs = append(errs, err)
	for _, file := range transports {
		names[file] = file
		addShared(ctx, names, file)
	}
	return errors.Join(errs...)
}
