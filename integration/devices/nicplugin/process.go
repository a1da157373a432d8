package nicplugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/deviceplugin"
	"github.com/rail-cni/rail-cni/pkg/notify"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// Configurations of the device plugin: one of these files is in its directory.
const (
	// NodeFile has the keys rails and resources of a node file.
	NodeFile = "node.yaml"
	// SharedFile is a configuration of k8s-rdma-shared-dev-plugin.
	SharedFile = "config.json"
)

// The other files in the directory.
const (
	stateFile   = "state.json"
	noticesFile = "notices" // a JSON object for each notice
	sysDir      = "sys"
	devInfoDir  = "devinfo"
	cdiDir      = "cdi"
)

// Variables of the process.
const (
	dirEnv     = "RAIL_CNI_NICPLUGIN"         // its directory
	kubeletEnv = "RAIL_CNI_NICPLUGIN_KUBELET" // the kubelet's directory
	rootEnv    = "RAIL_CNI_NICPLUGIN_ROOT"    // the node's root directory
)

// interval is the time between two looks at the files.
const interval = 100 * time.Millisecond

// Asked runs the device plugin, and does not return, if this process was started for it.
// A TestMain calls it first.
func Asked() {
	dir := os.Getenv(dirEnv)
	if dir == "" {
		return
	}
	if err := serve(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve runs the device plugin until the process is asked to end (SIGTERM).
func serve(dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	notices, err := os.OpenFile(filepath.Join(dir, noticesFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	dirs := notify.NewDirs(log)
	defer dirs.Close()
	var mu sync.Mutex
	deviceplugin.New(deviceplugin.Options{
		Config:     func() (*resource.Config, *resource.Rails, error) { return readConfig(dir) },
		Inventory:  func() (*deviceplugin.Inventory, error) { return readInventory(dir) },
		Interval:   interval,
		KubeletDir: os.Getenv(kubeletEnv), DevInfoDir: filepath.Join(dir, devInfoDir), CDIDir: filepath.Join(dir, cdiDir), Root: os.Getenv(rootEnv), Dirs: dirs,
		Notify: func(n component.Notice) {
			mu.Lock()
			defer mu.Unlock()
			_ = json.NewEncoder(notices).Encode(n) // the test misses it
		},
		Log: log,
	}).Run(ctx)
	if ctx.Err() == nil {
		return errors.New("the device plugin ended by itself")
	}
	return notices.Close()
}

func readConfig(dir string) (*resource.Config, *resource.Rails, error) {
	text, err := os.ReadFile(filepath.Join(dir, SharedFile))
	if err == nil {
		config, err := resource.ParseSharedDevicePlugin(text)
		return config, nil, err
	}
	if text, err = os.ReadFile(filepath.Join(dir, NodeFile)); err != nil {
		return nil, nil, err
	}
	var file struct {
		Rails     *resource.Rails
		Resources *resource.Config
	}
	err = yaml.Unmarshal(text, &file)
	return file.Resources, file.Rails, err
}

func readInventory(dir string) (*deviceplugin.Inventory, error) {
	text, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, err
	}
	var s State
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, err
	}
	return s.Inventory(filepath.Join(dir, sysDir))
}
