package pages

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/rail-cni/rail-cni/integration/cluster"
)

// ImageName is the name of the job's image.
const ImageName = "localhost/allreduce:1"

//go:embed allreduce/allreduce.c
var program []byte

// config is sshd's. The ranks' containers run as root, and know each other by the image's key.
const config = `Port 2222
HostKey /etc/ssh/id
AuthorizedKeysFile /etc/ssh/id.pub
PermitRootLogin prohibit-password
StrictModes no
PidFile none
`

// client is ssh's configuration. Names of pods come and go, and have one key.
const client = `Host *
  Port 2222
  IdentityFile /etc/ssh/id
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
`

// Image writes the archive of the job's image. tree has Debian's openmpi-bin, libopenmpi-dev,
// openssh-client and openssh-server, unpacked by scripts/debian-tree.sh; busybox is a static one.
// Each call makes another SSH key.
func Image(tree, busybox, archive string) error {
	libraries, err := filepath.Glob(filepath.Join(tree, "usr/lib/*-linux-gnu"))
	if err != nil || len(libraries) != 1 {
		return fmt.Errorf("%s has %d directories of libraries: make it again by scripts/debian-tree.sh", tree, len(libraries))
	}
	work, err := os.MkdirTemp("", "allreduce-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	i := &image{
		Image:  cluster.Image{Name: ImageName, Entrypoint: []string{"/bin/sh"}, Files: map[string]string{"/bin/busybox": busybox}, Links: map[string]string{"/usr/bin/mpirun": "orterun"}},
		tree:   tree,
		search: append(os.Environ(), "LD_LIBRARY_PATH="+libraries[0]),
	}
	return errors.Join(i.applets(busybox), i.compile(work, libraries[0]), i.openMPI(libraries[0]), i.openSSH(work), i.WriteFile(archive))
}

// image is an image of files of the tree, and of the libraries of the machine that they need.
type image struct {
	cluster.Image
	tree   string
	search []string // the environment in which ldd finds the tree's libraries
}

func (i *image) applets(busybox string) error {
	out, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return fmt.Errorf("%s --list: %w", busybox, err)
	}
	for applet := range strings.FieldsSeq(string(out)) {
		if applet != "busybox" {
			i.Links["/bin/"+applet] = "busybox"
		}
	}
	return nil
}

// compile adds the program.
func (i *image) compile(work, libraries string) error {
	source, built := filepath.Join(work, "allreduce.c"), filepath.Join(work, "allreduce")
	if err := os.WriteFile(source, program, 0o600); err != nil {
		return err
	}
	cmd := exec.Command("gcc", "-O2", "-Wall", "-Werror", "-I"+libraries+"/openmpi/include", "-o", built, source,
		"-L"+libraries, "-l:libmpi.so.40", "-Wl,-rpath-link,"+libraries)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return i.program("/usr/bin/allreduce", built)
}

// openMPI adds the programs, plugins and texts that a rank and its launcher need.
func (i *image) openMPI(libraries string) error {
	var errs []error
	for _, name := range []string{"orterun", "orted"} {
		errs = append(errs, i.program("/usr/bin/"+name, filepath.Join(i.tree, "usr/bin", name)))
	}
	for _, dir := range []string{libraries + "/openmpi/lib/openmpi3", libraries + "/pmix2/lib/pmix", i.tree + "/usr/share/openmpi", i.tree + "/etc/openmpi"} {
		errs = append(errs, i.directory(dir))
	}
	return errors.Join(errs...)
}

// openSSH adds ssh and sshd, a key for both, and the users that sshd looks up.
func (i *image) openSSH(work string) error {
	key := filepath.Join(work, "id")
	keygen := exec.Command(filepath.Join(i.tree, "usr/bin/ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "allreduce", "-f", key)
	keygen.Env = i.search
	if out, err := keygen.CombinedOutput(); err != nil {
		return fmt.Errorf("ssh-keygen: %w\n%s", err, out)
	}
	i.Files["/etc/ssh/id"], i.Files["/etc/ssh/id.pub"] = key, key+".pub"
	errs := []error{i.program("/usr/bin/ssh", filepath.Join(i.tree, "usr/bin/ssh")), i.program("/usr/sbin/sshd", filepath.Join(i.tree, "usr/sbin/sshd"))}
	for name, text := range map[string]string{
		"/etc/ssh/sshd_config": config, "/etc/ssh/ssh_config": client,
		"/etc/passwd": "root:x:0:0::/root:/bin/sh\nsshd:x:100:65534::/run/sshd:/bin/false\n", "/etc/group": "root:x:0:\nnogroup:x:65534:\n",
	} {
		i.Files[name] = filepath.Join(work, filepath.Base(name))
		errs = append(errs, os.WriteFile(i.Files[name], []byte(text), 0o644))
	}
	return errors.Join(errs...)
}

// directory adds the files of a directory of the tree, under the path that it has there.
func (i *image) directory(dir string) error {
	return filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		path := strings.TrimPrefix(name, i.tree)
		if strings.HasSuffix(name, ".so") {
			return i.program(path, name)
		}
		i.Files[path] = name
		return nil
	})
}

// program adds a program or a library with the libraries that it is linked with. A plugin whose
// libraries are missing is left out, as Open MPI leaves it out.
func (i *image) program(path, name string) error {
	ldd := exec.Command("ldd", name)
	ldd.Env = i.search
	out, err := ldd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("ldd %s: %w\n%s", name, err, out)
	}
	if strings.Contains(string(out), "not found") {
		if strings.HasSuffix(path, ".so") {
			return nil
		}
		return fmt.Errorf("%s lacks libraries\n%s", name, out)
	}
	i.Files[path] = name
	for word := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(word, "/") {
			i.Files[strings.TrimPrefix(word, i.tree)] = word
		}
	}
	return nil
}
