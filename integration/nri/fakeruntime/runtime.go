package fakeruntime

import (
	"context"
	"path/filepath"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
)

// Start starts a runtime with this socket, whose path may have 107 bytes (unix(7)). dir is for
// plugins that it would start itself. It waits patience for each answer of a plugin. The caller
// must stop it.
func Start(socket, dir string, patience time.Duration) (*adaptation.Adaptation, error) {
	adaptation.SetPluginRequestTimeout(patience)
	synchronize := func(ctx context.Context, with adaptation.SyncCB) error {
		_, err := with(ctx, []*api.PodSandbox{{Id: "old"}}, []*api.Container{{Id: "old-c", PodSandboxId: "old"}})
		return err
	}
	update := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil }
	r, err := adaptation.New("test", "v2.0.0", synchronize, update, adaptation.WithSocketPath(socket),
		adaptation.WithPluginPath(filepath.Join(dir, "plugins")), adaptation.WithPluginConfigPath(filepath.Join(dir, "conf")))
	if err == nil {
		err = r.Start()
	}
	return r, err
}
