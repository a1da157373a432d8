package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/ipam/kubernetes"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// network is a configuration that takes addresses from whereabouts' pools.
type network struct {
	name string // namespace/name of the NetworkAttachmentDefinition, or the file
	conf *netconf.Whereabouts
}

func nads(namespace string) kube.Resource {
	return kube.Resource{Group: "k8s.cni.cncf.io", Version: "v1", Plural: "network-attachment-definitions", Namespace: namespace}
}

// parseNetworks reads a network config or a list of plugins, and gives those
// plugins in it that use whereabouts.
func parseNetworks(name string, config []byte) ([]network, error) {
	type plugin struct {
		Name, CNIVersion string
		IPAM             struct{ Type string }
		Plugins          []json.RawMessage
	}
	var whole plugin
	if err := json.Unmarshal(config, &whole); err != nil {
		return nil, cnierr.Wrap(err, cnierr.Decode, "correct the JSON", "network %s", name)
	}
	plugins := whole.Plugins
	if plugins == nil {
		plugins = []json.RawMessage{config}
	}
	var found []network
	for _, text := range plugins {
		var p plugin
		var keys map[string]json.RawMessage
		if err := json.Unmarshal(text, &p); err != nil || !strings.HasSuffix(p.IPAM.Type, "whereabouts") { // installed with a prefix or without
			continue
		}
		if err := json.Unmarshal(text, &keys); err != nil {
			continue
		}
		// A list's plugins have its name and version, as libcni passes them.
		keys["name"], _ = json.Marshal(whole.Name)
		keys["cniVersion"], _ = json.Marshal(whole.CNIVersion)
		full, err := json.Marshal(keys)
		if err != nil {
			return nil, err
		}
		conf, err := netconf.ParseWhereabouts(full, "", netconf.WhereaboutsFlatFiles())
		if err == nil {
			err = ipam.CheckSpace(conf.NetworkName)
		}
		if err != nil {
			return found, cnierr.Wrap(err, cnierr.Code(err), "", "network %s", name)
		}
		found = append(found, network{name: name, conf: conf})
	}
	return found, nil
}

// parseNAD reads the networks of a NetworkAttachmentDefinition.
func parseNAD(item []byte) ([]network, error) {
	var nad struct {
		Metadata kube.Meta
		Spec     struct{ Config string }
	}
	if err := json.Unmarshal(item, &nad); err != nil {
		return nil, err
	}
	if strings.TrimSpace(nad.Spec.Config) == "" { // a file on the nodes has it
		return nil, nil
	}
	return parseNetworks(nad.Metadata.Namespace+"/"+nad.Metadata.Name, []byte(nad.Spec.Config))
}

// readNetworks gives the networks of all NetworkAttachmentDefinitions, and an
// error for each that cannot be read.
func readNetworks(ctx context.Context, client *kube.Client) ([]network, []error) {
	var found []network
	var errs []error
	_, err := client.List(ctx, nads(""), kube.ListOptions{}, func(item []byte) error {
		some, err := parseNAD(item)
		if err != nil {
			errs = append(errs, err)
		}
		found = append(found, some...)
		return nil
	})
	if err != nil {
		errs = append(errs, err)
	}
	return found, errs
}

// source is one range of a network: the pool, and what is handed out of it.
type source struct {
	network *network
	pool    ipam.Pool
	rng     *ipam.Range
}

// sources gives a network's ranges. With node slices they are those of the
// node, or without one the whole ranges, which are no pools.
func (n *network) sources(node string, slice netip.Prefix) ([]source, error) {
	var all []source
	for _, r := range n.conf.Ranges {
		s := source{network: n, pool: ipam.Pool{Space: n.conf.NetworkName, Prefix: r.Prefix}}
		if slice.IsValid() {
			s.pool.Node, s.pool.Prefix = node, slice
		}
		var err error
		s.rng, err = ipam.NewRange(ipam.RangeSpec{
			Prefix: r.Prefix, Start: r.Start, End: r.End,
			Exclude: r.Exclude, ExcludeText: r.ExcludeText, Avoid: n.conf.Gateways(),
		})
		if err == nil && slice.IsValid() {
			s.rng, err = s.rng.In(slice)
		}
		if err != nil {
			return all, fmt.Errorf("network %s: %w", n.name, err)
		}
		all = append(all, s)
	}
	return all, nil
}

// sliced gives the name of the NodeSlicePool of a network with node slices.
func (n *network) sliced() (name string, ok bool) {
	name = n.conf.NetworkName
	if name == "" {
		name = n.conf.Name
	}
	return name, n.conf.NodeSliceSize != 0
}

// sourcesOf is sources for a node of which the cluster knows the slice.
func (n *network) sourcesOf(ctx context.Context, client *kube.Client, node string) ([]source, error) {
	name, ok := n.sliced()
	if !ok {
		return n.sources("", netip.Prefix{})
	}
	if node == "" {
		return nil, cnierr.New(cnierr.InvalidConfig, "say by --node for which one", "network %s gives each node a slice of its range", n.name)
	}
	all, err := kubernetes.InspectSlices(ctx, client)
	if err != nil {
		return nil, err
	}
	var slice netip.Prefix
	if slices := all[name]; slices != nil {
		slice = slices.Of[node]
	}
	if !slice.IsValid() {
		return nil, cnierr.New(cnierr.NotAvailable, "whereabouts' node slice controller gives it", "NodeSlicePool %s has no slice for node %q", name, node)
	}
	return n.sources(node, slice)
}

// String names the range in a sentence.
func (s *source) String() string {
	return fmt.Sprintf("%s of network %s", s.pool.Prefix, s.network.name)
}
