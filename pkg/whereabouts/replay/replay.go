package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/store"
)

// Journals are the journals of a node's state directories.
type Journals struct {
	StateDirs []string
	UserAgent string           // for the servers' logs
	NodeFile  *nodefile.Reader // of this process; Waiting does not need it
	Log       *slog.Logger     // Waiting does not need it
}

// Waiting returns how many addresses wait to be freed. It makes no request.
func (j Journals) Waiting() (int, error) {
	total := 0
	var errs []error
	for _, dir := range j.StateDirs {
		endpoints, err := store.Journal{Path: netconf.JournalDir(dir)}.Waiting()
		errs = append(errs, err)
		for _, n := range endpoints {
			total += n
		}
	}
	return total, errors.Join(errs...)
}

// Replay frees the addresses that can be freed now. It returns an error about the addresses
// that remain.
func (j Journals) Replay(ctx context.Context) error {
	// The node file may have forbidden a kubeconfig since the entry was made.
	file, _, err := j.NodeFile.Read()
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range j.StateDirs {
		endpoints, err := store.Journal{Path: netconf.JournalDir(dir)}.Waiting()
		errs = append(errs, err)
		for _, e := range slices.SortedFunc(maps.Keys(endpoints), func(a, b store.Endpoint) int {
			return cmp.Or(cmp.Compare(a.Kubeconfig, b.Kubeconfig), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.FlatFile, b.FlatFile))
		}) {
			if err := j.replay(ctx, file, dir, e); err != nil {
				errs = append(errs, fmt.Errorf("addresses of the cluster of kubeconfig %s: %w", e.Kubeconfig, err))
			}
		}
	}
	return errors.Join(errs...)
}

func (j Journals) replay(ctx context.Context, file *nodefile.File, stateDir string, e store.Endpoint) error {
	client, err := j.open(file, e)
	if err != nil {
		return err
	}
	s, err := store.New(store.Options{
		Client: client, Kubeconfig: e.Kubeconfig, FlatFile: e.FlatFile, StateDir: stateDir, JournalDir: netconf.JournalDir(stateDir),
		Warn: func(err error) { j.Log.Warn("a step of the journal replay failed", "stateDir", stateDir, "err", err) },
	})
	if err != nil {
		return err
	}
	_, err = s.Replay(ctx)
	return errors.Join(err, s.Close())
}

// Open returns a client for a network's kubeconfig. flatFile is the network's flat file, or
// "" if the network has none. Open returns an error if the node file does not permit the
// kubeconfig.
func (j Journals) Open(kubeconfig, flatFile string) (*kube.Client, error) {
	file, _, err := j.NodeFile.Read()
	if err != nil {
		return nil, err
	}
	return j.open(file, store.Endpoint{Kubeconfig: kubeconfig, FlatFile: flatFile})
}

func (j Journals) open(file *nodefile.File, e store.Endpoint) (*kube.Client, error) {
	vet, err := file.VetKubeconfig(e.Kubeconfig, ipamconf.FlatFilesWith(file, e.FlatFile))
	if err != nil {
		return nil, err
	}
	return kube.Open(kube.Config{Kubeconfig: e.Kubeconfig, Vet: vet, Namespace: e.Namespace, UserAgent: j.UserAgent, RetryFor: store.RetryFor})
}
