package plugin

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/ipam/plan"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/block"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/store"
)

// openCluster opens the store of kubeconfig's cluster, and reads the node's
// slice if the config uses slices.
func (c *call) openCluster(ctx context.Context, kubeconfig string) (*store.Store, error) {
	s, err := c.connect(kubeconfig, c.conf.StateDir)
	if err != nil || c.conf.NodeSliceSize == 0 {
		return s, err
	}
	if err := c.findSlice(ctx, s); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (c *call) connect(kubeconfig, stateDir string) (*store.Store, error) {
	client, err := c.client(kubeconfig)
	if err != nil {
		return nil, err
	}
	return store.New(store.Options{
		Client: client, Kubeconfig: kubeconfig, FlatFile: c.flatFile(), StateDir: stateDir, JournalDir: netconf.JournalDir(stateDir), Netns: c.podNetns(),
		Warn: func(err error) { c.warn("a step failed", err) },
		Slow: func(err error) { c.warn("patches of a pool are slow", err) },
	})
}

// client opens the cluster of a kubeconfig that the node permits.
func (c *call) client(kubeconfig string) (*kube.Client, error) {
	if kubeconfig == "" {
		return nil, failure.New(failure.InvalidConfig, `"store": "kubernetes" without a kubeconfig`).
			Cure(`set "kubernetes": {"kubeconfig": "..."} in the ipam config or the flat file`)
	}
	vet, err := c.file.VetKubeconfig(kubeconfig, netconf.FlatFiles(c.allFlatFiles()...))
	if err != nil {
		return nil, err
	}
	return kube.Open(kube.Config{Kubeconfig: kubeconfig, Vet: vet, UserAgent: "rail-cni-whereabouts/" + c.Version, RetryFor: store.RetryFor})
}

// openBlocks opens the store of the node's blocks.
func (c *call) openBlocks() (*block.Store, error) {
	client, err := c.client(c.conf.Kubeconfig)
	if err != nil {
		return nil, err
	}
	node, err := nodeName(c.conf.ConfigurationPath)
	if err != nil {
		return nil, err
	}
	return block.New(block.Options{
		Client: client, Kubeconfig: c.conf.Kubeconfig, FlatFile: c.flatFile(), StateDir: c.conf.StateDir, Node: node, Size: c.conf.BlockSize,
		Gone: store.Gone(c.podNetns()),
		Warn: func(err error) { c.warn("a step failed", err) },
	})
}

// allFlatFiles returns the flat files of the node, and that of the config.
func (c *call) allFlatFiles() []string {
	if c.flatFile() == "" {
		return c.FlatFiles
	}
	return append([]string{c.flatFile()}, c.FlatFiles...)
}

// flatFile returns the flat file that completed the config, "" if there was none.
func (c *call) flatFile() string {
	if c.conf == nil {
		return ""
	}
	return c.conf.FlatFile
}

// findSlice sets c.slice.
func (c *call) findSlice(ctx context.Context, s *store.Store) error {
	whole, name, err := c.sliced()
	if err != nil {
		return err
	}
	prefix, err := s.Slice(ctx, c.owner(), name, whole.Node)
	if err != nil {
		return err
	}
	slice := plan.Slice{Node: whole.Node, Prefix: prefix}
	if whole := whole.Prefix; !slice.Within(whole) {
		return failure.New(failure.InvalidConfig, "the slice %s of node %q, in NodeSlicePool %s, is not part of %s", prefix, slice.Node, name, whole).
			Cure("delete the NodeSlicePool so that it is recreated, or correct the range")
	}
	c.slice = slice
	return nil
}

// sliced returns the range that the nodes' slices divide, with this node's name, and
// the name of the NodeSlicePool that holds the slices.
func (c *call) sliced() (whole ipam.Pool, name string, err error) {
	if len(c.conf.Ranges) != 1 {
		return whole, "", failure.New(failure.InvalidConfig, "node_slice_size with %d ranges: a NodeSlicePool has only one range", len(c.conf.Ranges)).
			Cure("use one network for each range")
	}
	node, err := nodeName(c.conf.ConfigurationPath)
	whole = ipam.Pool{Space: c.conf.NetworkName, Node: node, Prefix: c.conf.Ranges[0].Prefix}
	name, _ = plan.SlicePool(c.conf)
	return whole, name, err
}

// nodeName returns the node's name as whereabouts determines it: the
// environment variable NODENAME, the file "nodename" in configuration_path, or
// the host's.
func nodeName(configurationPath string) (string, error) {
	if name := strings.TrimSpace(os.Getenv("NODENAME")); name != "" {
		return name, nil
	}
	for _, path := range []string{filepath.Join(configurationPath, "nodename"), "/etc/hostname"} {
		data, err := nodefile.ReadFile(path)
		if name := strings.TrimSpace(string(data)); err == nil && name != "" {
			return name, nil
		}
	}
	return "", failure.New(failure.InvalidConfig, "dividing a range among nodes needs the node's name, and neither NODENAME nor /etc/hostname has one").
		Cure(`write it into the file "nodename" in the directory configuration_path`)
}

// masked replaces the mask of addresses of a slice with that of the whole
// range.
func (c *call) masked(got []netip.Prefix) []netip.Prefix {
	if !c.slice.Prefix.IsValid() {
		return got
	}
	masked := make([]netip.Prefix, 0, len(got))
	for i, p := range got {
		masked = append(masked, netip.PrefixFrom(p.Addr(), c.conf.Ranges[i].Prefix.Bits()))
	}
	return masked
}

// entryByEntry reports whether the addresses of the config's network are entries of the
// cluster's pools. Those of a node's blocks are in the node's local store.
func (c *call) entryByEntry() bool {
	return c.storeName() == netconf.StoreKubernetes && c.conf.BlockSize == 0
}

// releaseCluster frees what the attachment holds in the cluster that the
// config names. If there is no way to the cluster now, the journal keeps it.
func (c *call) releaseCluster(ctx context.Context) error {
	s, err := c.connect(c.conf.Kubeconfig, c.conf.StateDir)
	noted := store.AllocatedPools(c.conf.StateDir, c.owner())[c.conf.Kubeconfig]
	if err != nil {
		return c.releaseAway(noted, err)
	}
	defer s.Close()
	if c.conf.NodeSliceSize == 0 {
		return s.Release(ctx, c.owner(), c.pools())
	}
	if len(noted) > 0 { // the notes have the pool, without a request
		return s.Release(ctx, c.owner(), nil)
	}
	whole, slices, err := c.sliced()
	if err != nil {
		c.warn("cannot find the node's slice; the reconciler frees the address", err)
		return s.Release(ctx, c.owner(), nil)
	}
	return s.ReleaseSlice(ctx, c.owner(), whole, slices)
}

// releaseAway writes the attachment's addresses to the journal, because the
// cluster is unreachable. why is the reason.
func (c *call) releaseAway(noted []ipam.Pool, why error) error {
	kubeconfig := c.conf.Kubeconfig
	neverAsked := kubeconfig == "" || c.conf.Pod.Name == "" || errors.Is(why, nodefile.ErrClosed)
	switch {
	case neverAsked && len(noted) == 0:
		return nil // ADD got no address
	case c.conf.NodeSliceSize == 0:
		noted = append(noted, c.pools()...)
	case len(noted) == 0:
		whole, slices, err := c.sliced()
		if err != nil {
			c.warn("cannot find the node's slice; the reconciler frees the address", err)
			return nil
		}
		c.warn("cannot free the address yet; rail-agent frees it when it can read the node's slice", why)
		return c.journal(c.conf.StateDir).AddSlice(c.endpoint(kubeconfig), c.owner(), whole, slices)
	}
	return c.freeLater(kubeconfig, c.conf.StateDir, noted, why)
}

// freeLater writes to the journal that the attachment's addresses in pools of
// an unreachable cluster must be freed. why is the reason.
func (c *call) freeLater(kubeconfig, stateDir string, pools []ipam.Pool, why error) error {
	c.warn("cannot free the addresses yet; the node's next call that reaches the server frees them", why)
	return c.journal(stateDir).Add(c.endpoint(kubeconfig), c.owner(), pools)
}

// journal returns the journal of stateDir's store.
func (c *call) journal(stateDir string) store.Journal {
	return store.Journal{Path: netconf.JournalDir(stateDir)}
}

// endpoint returns the endpoint of kubeconfig's cluster for the journal's
// replay.
func (c *call) endpoint(kubeconfig string) store.Endpoint {
	return store.Endpoint{Kubeconfig: kubeconfig, FlatFile: c.flatFile()}
}

// releaseNoted frees the addresses that the node has noted for the attachment
// in clusters other than the config's. If one is unreachable they go to the
// journal.
func (c *call) releaseNoted(ctx context.Context, stateDir string) error {
	var errs []error
	for kubeconfig, pools := range store.AllocatedPools(stateDir, c.owner()) {
		if c.confErr == nil && kubeconfig == c.conf.Kubeconfig && c.entryByEntry() {
			continue // releaseCluster has freed them
		}
		s, err := c.connect(kubeconfig, stateDir)
		if err != nil {
			errs = append(errs, c.freeLater(kubeconfig, stateDir, pools, err))
			continue
		}
		errs = append(errs, s.Release(ctx, c.owner(), nil), s.Close())
	}
	return errors.Join(errs...)
}
