package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// options is the command line.
type options struct {
	bin, peers, out, label string
	rounds                 int
	inside                 bool
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "`directory` of our binaries")
	flag.StringVar(&o.peers, "peers", "bin/peers", "`directory` of the CNI project's binaries")
	flag.StringVar(&o.out, "out", "bin/bench", "`directory` for bench.md and bench.json")
	flag.StringVar(&o.label, "label", "devel", "what is measured, for the report")
	flag.IntVar(&o.rounds, "rounds", 40, "how often each contender has its turn")
	flag.BoolVar(&o.inside, "inside", false, "used by the programme itself: already in the node's namespaces")
	flag.Parse()

	if err := start(o); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			os.Exit(exit.ExitCode()) // it has said why
		}
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func start(o options) error {
	if o.rounds < 1 {
		return errors.New("-rounds must be at least 1")
	}
	if os.Geteuid() != 0 {
		return errors.New("measuring needs root: it makes network namespaces and moves links between them")
	}
	if !o.inside {
		return reexec(os.Args[1:])
	}
	if err := enterNode(); err != nil {
		return err
	}
	return bench(o)
}

// bench measures, inside the node, and reports.
func bench(o options) error {
	p, err := findPlaces(o)
	if err != nil {
		return err
	}
	defer os.RemoveAll(p.disk)
	a, err := conditions(o, p)
	if err != nil {
		return err
	}
	list, err := contenders(p)
	if err != nil {
		return err
	}
	if err := setUp(list); err != nil {
		return err
	}
	s, err := newScratch("/run")
	if err != nil {
		return err
	}
	files := binaries(p)
	m := run(s, list, files, o.rounds, progress(o.rounds))
	if a.LoadAfter, err = loadAverage(); err != nil {
		return err
	}
	r := newReport(a, list, files, m)
	r.text(os.Stdout)
	if err := r.write(o.out); err != nil {
		return err
	}
	fmt.Printf("\nwritten to %s\n", filepath.Join(o.out, "bench.{md,json}"))
	if missing := r.unmeasured(); len(missing) > 0 {
		return fmt.Errorf("not measured: %s (the tables say why)", strings.Join(missing, ", "))
	}
	return nil
}

func findPlaces(o options) (places, error) {
	p := places{state: "/run/rail-cni"}
	var err error
	if p.ip, err = exec.LookPath("ip"); err != nil {
		return p, fmt.Errorf("the floor is measured with ip(8); install iproute2: %w", err)
	}
	for _, dir := range []struct {
		to   *string
		from string
	}{{&p.ours, o.bin}, {&p.peers, o.peers}} {
		if *dir.to, err = filepath.Abs(dir.from); err != nil {
			return p, err
		}
	}
	if err := os.MkdirAll(p.state, 0o700); err != nil {
		return p, err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return p, err
	}
	out, err := filepath.Abs(o.out)
	if err != nil {
		return p, err
	}
	p.disk, err = os.MkdirTemp(out, "state-")
	return p, err
}

// conditions notes what a reader must know to judge the figures.
func conditions(o options, p places) (about, error) {
	a := about{Label: o.label, Rounds: o.rounds, CPUs: runtime.NumCPU()}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return a, err
	}
	a.Kernel = unix.ByteSliceToString(name.Release[:])
	var err error
	if a.LoadBefore, err = loadAverage(); err != nil {
		return a, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(p.disk, &fs); err != nil {
		return a, err
	}
	a.State = "state of all plugins on tmpfs (no fsync), but for the row that says disk"
	if fs.Type == unix.TMPFS_MAGIC {
		a.State = "state of all plugins on tmpfs (no fsync), the row that says disk too: -out is on tmpfs"
	}
	return a, nil
}

func loadAverage() (string, error) {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "", err
	}
	first, _, _ := bytes.Cut(data, []byte(" "))
	return string(first), nil
}

// progress tells on stderr how far the run is, if a person looks.
func progress(rounds int) func(int) {
	info, err := os.Stderr.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return func(int) {}
	}
	return func(round int) {
		fmt.Fprintf(os.Stderr, "\rround %d of %d\x1b[K", round, rounds)
		if round == rounds {
			fmt.Fprint(os.Stderr, "\r\x1b[K")
		}
	}
}

// write leaves the report in dir, for documents and for machines.
func (r *report) write(dir string) error {
	var md, js bytes.Buffer
	r.markdown(&md)
	if err := r.json(&js); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "bench.md"), md.Bytes(), 0o644),
		os.WriteFile(filepath.Join(dir, "bench.json"), js.Bytes(), 0o644),
	)
}
