package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/ipam/kubernetes"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// journal replays what DELs of this node could not free, each entry by the
// kubeconfig that it names.
type journal struct {
	stateDirs []string
	log       *slog.Logger
}

// Waiting implements agent.Journal.
func (j journal) Waiting() (int, error) {
	total := 0
	var errs []error
	for _, dir := range j.stateDirs {
		ways, err := kubernetes.Journalled(netconf.JournalDir(dir))
		errs = append(errs, err)
		for _, n := range ways {
			total += n
		}
	}
	return total, errors.Join(errs...)
}

// Replay implements agent.Journal.
func (j journal) Replay(ctx context.Context) error {
	// It may have been closed since the entry was made.
	file, err := netconf.ReadNodeFile(netconf.NodeFilePath())
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range j.stateDirs {
		ways, err := kubernetes.Journalled(netconf.JournalDir(dir))
		errs = append(errs, err)
		for _, w := range slices.SortedFunc(maps.Keys(ways), func(a, b kubernetes.Way) int {
			return cmp.Or(cmp.Compare(a.Kubeconfig, b.Kubeconfig), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.FlatFile, b.FlatFile))
		}) {
			if err := j.replay(ctx, file, dir, w); err != nil {
				errs = append(errs, fmt.Errorf("by kubeconfig %s: %w", w.Kubeconfig, err))
			}
		}
	}
	return errors.Join(errs...)
}

func (j journal) replay(ctx context.Context, file *netconf.NodeFile, stateDir string, w kubernetes.Way) error {
	vet, err := file.VetKubeconfig(w.Kubeconfig, file.FlatFiles(w.FlatFile))
	if err != nil {
		return err
	}
	client, err := kube.Open(kube.Config{Kubeconfig: w.Kubeconfig, Vet: vet, Namespace: w.Namespace, UserAgent: "rail-agent/" + version, RetryFor: kubernetes.RetryFor})
	if err != nil {
		return err
	}
	store, err := kubernetes.New(kubernetes.Options{
		Client: client, Kubeconfig: w.Kubeconfig, FlatFile: w.FlatFile, StateDir: stateDir, JournalDir: netconf.JournalDir(stateDir),
		Warn: func(err error) { j.log.Warn("not done yet", "stateDir", stateDir, "err", err) },
	})
	if err != nil {
		return err
	}
	_, err = store.Replay(ctx)
	return errors.Join(err, store.Close())
}
