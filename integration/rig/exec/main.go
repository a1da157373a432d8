package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/rig"
	"github.com/rail-cni/rail-cni/integration/scratch"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	code, err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "rig:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string) (int, error) {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return 2, errors.New("usage: go test -exec <this program> PACKAGES, or: rig build")
	}
	dir, err := os.Getwd()
	if err != nil {
		return 1, err
	}
	root, err := rig.FindRoot(dir)
	if err != nil {
		return 1, err
	}
	if args[0] == "build" {
		return 0, prepare(ctx, root, nil, nil)
	}
	work, err := scratch.MkdirTemp("rig")
	if err != nil {
		return 1, err
	}
	defer scratch.Remove(work)
	initrd := filepath.Join(work, "initrd.cpio")
	job := &rig.Job{
		Binary: args[0], Args: args[1:], Dir: dir, Env: passedOn(), Module: os.Getenv("RIG_MODULE"), Files: os.Getenv("RIG_FILES"),
		Binaries: cmp.Or(os.Getenv("RAIL_CNI_BIN"), filepath.Join(root, "bin")),
		Peers:    cmp.Or(os.Getenv("RAIL_CNI_PEERS"), filepath.Join(root, "bin", "peers")),
	}
	m := &rig.Machine{
		Initrd: initrd, Out: os.Stdout, ErrOut: os.Stderr, Log: os.Stderr, Disk: os.Getenv("RIG_DISK"), Reach: os.Getenv("RIG_REACH"),
		Memory: os.Getenv("RIG_MEMORY"), GPUs: os.Getenv("RIG_GPUS") == "yes",
	}
	if err := prepare(ctx, root, job, m); err != nil {
		return 1, err
	}
	return test(ctx, root, m, job)
}

// prepare makes the image and, with a job, the machine's file system.
func prepare(ctx context.Context, root string, job *rig.Job, m *rig.Machine) error {
	unlock, err := rig.LockBuild(ctx, root, os.Stderr)
	if err != nil {
		return err
	}
	defer unlock()
	image, err := rig.Build(ctx, root, rig.Options{Linux: os.Getenv("RIG"), IGB: os.Getenv("RIG_IGB") == "yes"}, os.Stderr)
	if err == nil {
		err = image.Accelerate(ctx, root, os.Getenv("RIG_ACCEL"), os.Stderr)
	}
	if err != nil || job == nil {
		return err
	}
	m.Image = image
	return job.Pack(image, m.Initrd)
}

// test runs one job in one machine, after waiting for its turn.
func test(ctx context.Context, root string, m *rig.Machine, job *rig.Job) (int, error) {
	machines := 1
	if text := os.Getenv("RIG_MACHINES"); text != "" {
		var err error
		if machines, err = strconv.Atoi(text); err != nil || machines < 1 {
			return 2, fmt.Errorf("RIG_MACHINES=%q is no number of machines", text)
		}
	}
	unlock, err := rig.LockMachine(ctx, root, machines, os.Stderr)
	if err != nil {
		return 1, err
	}
	defer unlock()
	limit, err := timeLimit(job.Args)
	if err != nil {
		return 2, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the machine was still running after %v", limit))
	defer cancel()
	return m.Run(ctx)
}

// passedOn returns the variables of this environment that the test gets.
func passedOn() []string {
	env := []string{fmt.Sprintf("%s=%d", need.SeedVariable, need.Seed())} // the machine has no checkout
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case need.Variable, need.FullVariable, "GODEBUG", "GOTRACEBACK", "GOMAXPROCS", "GOGC":
			env = append(env, kv)
		default:
			if name == "RIG" || strings.HasPrefix(name, "RIG_") || strings.HasPrefix(name, "RAIL_CNI_CRASH") || strings.HasPrefix(name, "RAIL_CNI_HOSTILE") {
				env = append(env, kv)
			}
		}
	}
	return env
}

// timeLimit returns the bound of the machine's life: RIG_LIMIT, or the test's
// own limit plus the time to boot and to print all goroutines.
func timeLimit(testArgs []string) (time.Duration, error) {
	const slack = 30 * time.Second
	if text := os.Getenv("RIG_LIMIT"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return 0, fmt.Errorf("RIG_LIMIT=%q is no time", text)
		}
		return d, nil
	}
	for i, a := range testArgs {
		name, text, _ := strings.Cut(a, "=")
		if name != "-test.timeout" {
			continue
		}
		if text == "" && i+1 < len(testArgs) {
			text = testArgs[i+1]
		}
		if d, err := time.ParseDuration(text); err == nil && d > 0 {
			return d + slack, nil
		}
	}
	return 10*time.Minute + slack, nil
}
