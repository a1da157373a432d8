package report

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/ipam/plan"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// Network is a configuration that takes addresses from whereabouts' pools.
type Network struct {
	Name string // namespace/name of the NetworkAttachmentDefinition, or the file
	// Rail is the rail that Conf is for, or nil if all rails have the same configuration.
	Rail *int
	Conf *ipamconf.Whereabouts
}

func nads(namespace string) kube.Resource {
	return kube.Resource{Group: nadv1.SchemeGroupVersion.Group, Version: nadv1.SchemeGroupVersion.Version, Plural: "network-attachment-definitions", Namespace: namespace}
}

// FindNetworks returns the networks in the file name. If there is no such file, it returns
// the networks in the NetworkAttachmentDefinition "namespace/name". It returns an error if
// there are no networks.
func FindNetworks(ctx context.Context, client *kube.Client, name string) ([]Network, error) {
	var found []Network
	text, err := os.ReadFile(name)
	if err == nil {
		found, err = parseNetworks(name, text)
	} else {
		namespace, nad, ok := strings.Cut(name, "/")
		if !ok || strings.Contains(nad, "/") {
			return nil, fmt.Errorf("%w; give a file, or a NetworkAttachmentDefinition as namespace/name", err)
		}
		var object []byte
		if object, err = client.Get(ctx, nads(namespace), nad); err == nil {
			found, err = parseNAD(object)
		}
	}
	if err == nil && len(found) == 0 {
		err = failure.New(failure.InvalidConfig, "network %s takes no addresses from whereabouts", name)
	}
	return found, err
}

// readNetworks returns the networks of all NetworkAttachmentDefinitions, and an
// error for each that cannot be read.
func readNetworks(ctx context.Context, client *kube.Client) ([]Network, []error) {
	var found []Network
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

// parseNAD returns the networks of a NetworkAttachmentDefinition.
func parseNAD(item []byte) ([]Network, error) {
	var nad nadv1.NetworkAttachmentDefinition
	if err := json.Unmarshal(item, &nad); err != nil {
		return nil, err
	}
	if strings.TrimSpace(nad.Spec.Config) == "" { // the configuration is a file on the nodes
		return nil, nil
	}
	return parseNetworks(nad.Namespace+"/"+nad.Name, []byte(nad.Spec.Config))
}

// parseNetworks reads a network configuration or a list of plugins, and returns the plugins
// in it that use whereabouts.
func parseNetworks(name string, config []byte) ([]Network, error) {
	type plugin struct {
		Name, CNIVersion string
		IPAM             struct{ Type string }
		Plugins          []json.RawMessage
	}
	var whole plugin
	if err := json.Unmarshal(config, &whole); err != nil {
		return nil, failure.From(err, failure.Decode, "network %s", name).Cure("correct the JSON")
	}
	plugins := whole.Plugins
	if plugins == nil {
		plugins = []json.RawMessage{config}
	}
	var found []Network
	for _, text := range plugins {
		var p plugin
		var keys map[string]json.RawMessage
		if err := json.Unmarshal(text, &p); err != nil || !strings.HasSuffix(p.IPAM.Type, "whereabouts") { // installed with or without a prefix
			continue
		}
		if err := json.Unmarshal(text, &keys); err != nil {
			continue
		}
		// Each plugin of a list gets the list's name and version, as from libcni.
		keys["name"], _ = json.Marshal(whole.Name)
		keys["cniVersion"], _ = json.Marshal(whole.CNIVersion)
		full, err := json.Marshal(keys)
		if err != nil {
			return nil, err
		}
		configs, err := onRails(full)
		for i := 0; i < len(configs) && err == nil; i++ {
			var conf *ipamconf.Whereabouts
			if conf, err = ipamconf.ParseWhereabouts(configs[i].text, "", ipamconf.WhereaboutsFlatFiles()); err == nil {
				err = ipam.CheckSpace(conf.NetworkName)
				found = append(found, Network{Name: name, Rail: configs[i].rail, Conf: conf})
			}
		}
		if err != nil {
			return found, fmt.Errorf("network %s: %w", name, err)
		}
	}
	return found, nil
}

// source is one range of a network: the pool, and the addresses that are
// assigned from it.
type source struct {
	ipam.Claim
	network *Network
}

// sources returns a network's ranges within slice, or the whole ranges if slice is
// zero. For a network with node slices, a whole range has no pool of its own.
func (n *Network) sources(slice plan.Slice) ([]source, error) {
	claims, err := plan.Claims(n.Conf, slice)
	all := make([]source, 0, len(claims))
	for _, c := range claims {
		all = append(all, source{Claim: c, network: n})
	}
	if err != nil {
		err = fmt.Errorf("network %s: %w", n.Name, err)
	}
	return all, err
}

// sourcesOn returns a network's ranges on a node. For a network with node slices, these are
// the ranges within the node's slice, which it reads from the cluster. For all other
// networks, also those with blocks, these are the whole ranges.
func (n *Network) sourcesOn(ctx context.Context, client *kube.Client, node string) ([]source, error) {
	name, ok := plan.SlicePool(n.Conf)
	if n.Conf.BlockSize != 0 && node == "" {
		return nil, failure.New(failure.InvalidConfig, "network %s gives each node blocks of its range", n.Name).Cure("name a node with --node")
	}
	if !ok {
		return n.sources(plan.Slice{})
	}
	if node == "" {
		return nil, failure.New(failure.InvalidConfig, "network %s gives each node a slice of its range", n.Name).Cure("name a node with --node")
	}
	all, err := api.InspectSlices(ctx, client)
	if err != nil {
		return nil, err
	}
	var prefix netip.Prefix
	if slices := all[name]; slices != nil {
		prefix = slices.ByNode[node]
	}
	if !prefix.IsValid() {
		return nil, failure.New(failure.NotAvailable, "NodeSlicePool %s has no slice for node %q", name, node).
			Cure("run whereabouts' node slice controller, and check that it knows the node")
	}
	return n.sources(plan.Slice{Node: node, Prefix: prefix})
}

// String returns a text that names the range in a sentence.
func (s *source) String() string {
	return fmt.Sprintf("%s of network %s", s.Pool.Prefix, s.network.Name)
}
