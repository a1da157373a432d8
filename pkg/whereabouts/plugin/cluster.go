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
	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/block"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/sandbox"
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

// client returns a client of the cluster that a kubeconfig names. It returns an error if
// the node does not permit the kubeconfig.
func (c *call) client(kubeconfig string) (*kube.Client, error) {
	if kubeconfig == "" {
		return nil, failure.New(failure.InvalidConfig, `the ipam config has "store": "kubernetes" without a kubeconfig`).
			Cure(`set "kubernetes": {"kubeconfig": "..."} in the ipam config or the flat file`)
	}
	vet, err := c.file.VetKubeconfig(kubeconfig, ipamconf.FlatFiles(c.allFlatFiles()...))
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
		Gone: sandbox.Gone(c.podNetns()),
		Warn: func(err error) { c.warn("a step failed", err) },
	})
}

// allFlatFiles returns the flat files of the node, and the flat file that completed the
// config.
func (c *call) allFlatFiles() []string {
	if c.flatFile() == "" {
		return c.FlatFiles
	}
	return append([]string{c.flatFile()}, c.FlatFiles...)
}

// flatFile returns the flat file that completed the config, or "" if there was none.
func (c *call) flatFile() string {
	if c.conf == nil {
		return ""
	}
	return c.conf.FlatFile
}

// findSlice reads the node's slice from the cluster, and sets c.slice.
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
		return whole, "", failure.New(failure.InvalidConfig, "the network has node_slice_size and %d ranges, but a NodeSlicePool has only one range", len(c.conf.Ranges)).
			Cure("use one network for each range")
	}
	node, err := nodeName(c.conf.ConfigurationPath)
	whole = ipam.Pool{Space: c.conf.NetworkName, Node: node, Prefix: c.conf.Ranges[0].Prefix}
	name, _ = plan.SlicePool(c.conf)
	return whole, name, err
}

// nodeName returns the node's name as whereabouts determines it. The name is in the
// environment variable NODENAME, in the file "nodename" in configuration_path, or in
// /etc/hostname. The first of them that has a name is used.
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
	return "", failure.New(failure.InvalidConfig, "the node's name is unknown, and a range that is divided among nodes needs it: neither NODENAME nor /etc/hostname has a name").
		Cure(`write the node's name into the file "nodename" in the directory configuration_path`)
}

// masked returns the addresses with the prefix length of the whole range instead of the
// prefix length of the node's slice.
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

// entryByEntry reports whether the addresses of the config's network are entries in the
// cluster's pools. It returns false for a network with blocks, whose addresses are in the
// node's local store.
func (c *call) entryByEntry() bool {
	return c.storeName() == ipamconf.StoreKubernetes && c.conf.BlockSize == 0
}

// releaseCluster frees the addresses that the attachment holds in the cluster that the
// config names. If the cluster cannot be reached now, it writes the addresses to the
// journal.
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
	if len(noted) > 0 { // the notes name the pool, so no request is needed
		return s.Release(ctx, c.owner(), nil)
	}
	whole, slices, err := c.sliced()
	if err != nil {
		c.warn("cannot find the node's slice; the reconciler frees the address", err)
		return s.Release(ctx, c.owner(), nil)
	}
	return s.ReleaseSlice(ctx, c.owner(), whole, slices)
}

// releaseAway writes the attachment's addresses to the journal, because the cluster is
// unreachable. why is the reason why it is unreachable.
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

// freeLater writes to the journal that the attachment's addresses in pools must be freed,
// because their cluster is unreachable. why is the reason why it is unreachable.
func (c *call) freeLater(kubeconfig, stateDir string, pools []ipam.Pool, why error) error {
	c.warn("cannot free the addresses yet; the node's next call that reaches the server frees them", why)
	return c.journal(stateDir).Add(c.endpoint(kubeconfig), c.owner(), pools)
}

// journal returns the journal of stateDir's store.
func (c *call) journal(stateDir string) store.Journal {
	return store.Journal{Path: netconf.JournalDir(stateDir)}
}

// endpoint returns the endpoint of kubeconfig's cluster, which the journal needs for the
// replay.
func (c *call) endpoint(kubeconfig string) store.Endpoint {
	return store.Endpoint{Kubeconfig: kubeconfig, FlatFile: c.flatFile()}
}

// releaseNoted frees the addresses that the node has noted for the attachment in clusters
// other than the config's. If one of these clusters is unreachable, its addresses go to the
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
