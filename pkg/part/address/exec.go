package address

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// This file replaces libcni's pkg/invoke for delegated plugins. That package depends on a whole
// HTTP and TLS stack for tracing headers. The stack would be the largest part of this binary and of
// its start time.

// findPlugin returns the binary of a plugin type: the first regular file with that name in the
// directories of path, which is a list as in CNI_PATH.
func findPlugin(plugin, path string) (string, error) {
	if plugin == "" || plugin != filepath.Base(plugin) || plugin == "." || plugin == ".." {
		return "", fmt.Errorf("%w: %q is not a plugin's name", attachment.ErrNotInstalled, plugin)
	}
	for _, dir := range filepath.SplitList(path) {
		binary := filepath.Join(dir, plugin)
		if info, err := os.Stat(binary); dir != "" && err == nil && info.Mode().IsRegular() {
			return binary, nil
		}
	}
	return "", fmt.Errorf("%w (%s)", attachment.ErrNotInstalled, path)
}

// pluginEnv is the environment of a plugin's call (CNI SPEC, section 2).
type pluginEnv struct {
	command, containerID, netns, ifName, args, path string
}

// list returns the environment of this process, with the CNI_ variables replaced by those of e.
func (e pluginEnv) list() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "CNI_") {
			env = append(env, kv)
		}
	}
	return append(env, "CNI_COMMAND="+e.command, "CNI_CONTAINERID="+e.containerID, "CNI_NETNS="+e.netns,
		"CNI_IFNAME="+e.ifName, "CNI_ARGS="+e.args, "CNI_PATH="+e.path)
}

// busyTries bounds the number of tries to run a binary that an installer is writing. There are 10
// ms between two tries.
const busyTries = 100

// execPlugin runs a plugin with config on its stdin and returns its stdout. If
// the plugin fails, the error is the *types.Error that it printed, or its
// stderr.
func execPlugin(ctx context.Context, binary string, env pluginEnv, config []byte) ([]byte, error) {
	for try := 0; ; try++ {
		var stdout, stderr bytes.Buffer
		cmd := exec.CommandContext(ctx, binary)
		cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env.list(), bytes.NewReader(config), &stdout, &stderr
		// A process that the plugin leaves behind may keep the plugin's stdout open.
		cmd.WaitDelay = time.Second
		// The plugin is killed when this process ends. Otherwise its answer would be lost, and it
		// could allocate an address after the attachment's next DEL.
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		err := onOneThread(cmd.Run)
		if errors.Is(err, unix.ETXTBSY) && try < busyTries && wait.For(ctx, 10*time.Millisecond) == nil {
			continue
		}
		if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
			return nil, pluginError(err, stdout.Bytes(), stderr.Bytes())
		}
		return stdout.Bytes(), nil
	}
}

// onOneThread keeps the thread that starts a child until the child has ended, because the parent of
// the child is the thread and not the process (PR_SET_PDEATHSIG(2const)).
func onOneThread(run func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return run()
}

func pluginError(err error, stdout, stderr []byte) error {
	cniErr := &types.Error{}
	if json.Unmarshal(stdout, cniErr) == nil && (cniErr.Code != 0 || cniErr.Msg != "") {
		return cniErr
	}
	if text := bytes.TrimSpace(stderr); len(text) > 0 {
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}

// decodeResult reads a plugin's result. If the result has no version, it has the version of the
// configuration.
func decodeResult(stdout []byte, version string) (types.Result, error) {
	if err := netconf.WholeResult(stdout); err != nil {
		return nil, err
	}
	var named struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(stdout, &named); err != nil {
		return nil, err
	}
	if named.CNIVersion != "" {
		return create.Create(named.CNIVersion, stdout)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(stdout, &raw); err != nil {
		return nil, err
	}
	raw["cniVersion"], _ = json.Marshal(version) // a string always marshals
	stdout, err := json.Marshal(raw)
	if err != nil {
		return nil, err
	}
	return create.Create(version, stdout)
}
