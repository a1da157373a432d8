package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rail-cni/rail-cni/integration/rig"
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
	unlock, err := rig.Lock(root, os.Stderr)
	if err != nil {
		return 1, err
	}
	defer unlock()
	image, err := rig.Build(ctx, root, os.Stderr)
	if err != nil || args[0] == "build" {
		return 0, err
	}
	return test(ctx, image, root, &rig.Job{
		Binary: args[0], Args: args[1:], Dir: dir, Env: passedOn(), Module: os.Getenv("RIG_MODULE"),
		Binaries: cmp.Or(os.Getenv("RAIL_CNI_BIN"), filepath.Join(root, "bin")),
		Peers:    cmp.Or(os.Getenv("RAIL_CNI_PEERS"), filepath.Join(root, "bin", "peers")),
	})
}

// test runs one job in one machine.
func test(ctx context.Context, image *rig.Image, root string, job *rig.Job) (int, error) {
	initrd, err := os.CreateTemp(rig.CacheDir(root), "run-*.cpio")
	if err != nil {
		return 1, err
	}
	defer os.Remove(initrd.Name())
	if err := errors.Join(initrd.Close(), job.Pack(image, initrd.Name())); err != nil {
		return 1, err
	}
	limit, err := timeLimit(job.Args)
	if err != nil {
		return 2, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the machine was still running after %v", limit))
	defer cancel()
	m := rig.Machine{Image: image, Initrd: initrd.Name(), Out: os.Stdout, ErrOut: os.Stderr, Log: os.Stderr}
	return m.Run(ctx)
}

// passedOn gives the variables of this environment that the test gets.
func passedOn() []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case "GODEBUG", "GOTRACEBACK", "GOMAXPROCS", "GOGC":
			env = append(env, kv)
		default:
			if strings.HasPrefix(name, "RIG_") {
				env = append(env, kv)
			}
		}
	}
	return env
}

// timeLimit bounds the machine's life: what RIG_LIMIT says, or the test's own
// limit, and the time to boot and to print where each goroutine was.
func timeLimit(testArgs []string) (time.Duration, error) {
	const slack = 30 * time.Second
	if text := os.Getenv("RIG_LIMIT"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return 0, fmt.Errorf("RIG_LIMIT=%q is no time", text)
		}
		return d, nil
	}
	for _, a := range testArgs {
		if text, ok := strings.CutPrefix(a, "-test.timeout="); ok {
			if d, err := time.ParseDuration(text); err == nil && d > 0 {
				return d + slack, nil
			}
		}
	}
	return 10*time.Minute + slack, nil
}
