package nri

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/notify"
	"github.com/rail-cni/rail-cni/pkg/nri"
	"github.com/rail-cni/rail-cni/pkg/publish"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
)

// standInEnv makes this process the stand-in; its value is the node's name.
const standInEnv = "RAIL_CNI_TEST_NRI_STANDIN"

func TestMain(m *testing.M) {
	if node := os.Getenv(standInEnv); node != "" {
		standIn(node)
		os.Exit(0)
	}
	code := m.Run()
	if err := endLab(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// standIn runs the NRI plugin of rail-agent until SIGTERM. Rails get the RDMA devices that
// veths do not have: net1 has mlx5_0 and uverbs0.
func standIn(node string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	dirs := notify.NewDirs(log)
	defer dirs.Close()
	keeper := publish.NewKeeper(publish.Options{
		StateDirs: []string{"/run/rail-cni"}, Node: node, NodeFile: &nodefile.Reader{}, Dirs: dirs, Log: log,
	})
	lookup := func(ctx context.Context, sandboxID string) (*publish.Publication, error) {
		told, err := keeper.Lookup(ctx, sandboxID)
		if told == nil || err != nil {
			return told, err
		}
		rails := *told.Rails
		rails.Rails = append([]railinfo.Rail{}, rails.Rails...)
		for i := range rails.Rails {
			r := &rails.Rails[i]
			k := strings.TrimPrefix(r.IfName, "net")
			r.RDMA, r.Port, r.LinkLayer, r.CharDevices = "mlx5_"+k, 1, "Ethernet", []string{uverbs + k}
		}
		return &publish.Publication{Rails: &rails, Settings: told.Settings, Dir: told.Dir}, nil
	}
	nri.New(nri.Options{Socket: nriSocket, Lookup: lookup, Dirs: dirs, Log: log}).Run(ctx)
}
