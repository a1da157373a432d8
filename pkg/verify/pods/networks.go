package pods

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// These are the annotations that Multus reads on pods and on NetworkAttachmentDefinitions.
const (
	networksKey = "k8s.v1.cni.cncf.io/networks"
	resourceKey = "k8s.v1.cni.cncf.io/resourceName"
)

// maxConfig is the maximum size of a network's configuration, in bytes.
const maxConfig = 64 << 10

// Network is a NetworkAttachmentDefinition (NAD) from which pods get a rail.
type Network struct {
	Namespace, Name string
	Config          string // the name in the configuration, which appears in errors of Multus
	Resource        string // the resource that a pod must request for the network, "" for none
	kind            string // the type of the first plugin
	device, pci     string // the NIC that the network names for host-device, "" if it names none in this way
}

// needs reports whether it is certain that a pod with the network needs the NIC of the attachment.
func (n *Network) needs(a *fact.Attachment) bool {
	if n.kind != "host-device" || a.Plugin != n.kind || n.Resource != "" || !a.Alive || !a.InPod {
		return false
	}
	if n.device != "" || n.pci != "" {
		return a.NIC != "" && a.NIC == n.device || a.PCI != "" && a.PCI == n.pci
	}
	return a.Network == n.Config
}

// String returns "namespace/name".
func (n *Network) String() string { return n.Namespace + "/" + n.Name }

func nads(namespace string) kube.Resource {
	return kube.Resource{Group: "k8s.cni.cncf.io", Version: "v1", Plural: "network-attachment-definitions", Namespace: namespace}
}

// Networks returns the networks with these names, in the order of names. A name is "name" or
// "namespace/name". The k-th network is for rail k. Without names, it returns the networks of the
// namespace whose plugin is host-device. If there are none, it returns the networks whose plugin is
// macvlan. These networks are sorted by the numbers in their names.
func Networks(ctx context.Context, client *kube.Client, namespace string, names []string) ([]Network, error) {
	if len(names) == 0 {
		return allNetworks(ctx, client, namespace)
	}
	var found []Network
	for _, name := range names {
		ns, short, ok := strings.Cut(name, "/")
		if !ok {
			ns, short = namespace, name
		}
		text, err := client.Get(ctx, nads(ns), short)
		if err != nil {
			return nil, err
		}
		n, err := readNetwork(text)
		if err != nil {
			return nil, err
		}
		if slices.Contains(found, n) {
			return nil, fmt.Errorf("the network %s is named twice", &n)
		}
		found = append(found, n)
	}
	return found, nil
}

func allNetworks(ctx context.Context, client *kube.Client, namespace string) ([]Network, error) {
	var all []Network
	_, err := client.List(ctx, nads(namespace), kube.ListOptions{}, func(item []byte) error {
		n, err := readNetwork(item)
		if err == nil { // a network that cannot be read is not one of ours
			all = append(all, n)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, kind := range []string{"host-device", "macvlan"} {
		found := slices.DeleteFunc(slices.Clone(all), func(n Network) bool { return n.kind != kind })
		if len(found) > 0 {
			slices.SortFunc(found, func(a, b Network) int { return naturally(a.Name, b.Name) })
			return found, nil
		}
	}
	return nil, failure.New(failure.NotAvailable, "no network-attachment-definition of host-device or macvlan in the namespace %s", namespace).
		Cure("name the rails' networks with --network, or their namespace with --namespace")
}

// readNetwork reads a NAD.
func readNetwork(text []byte) (Network, error) {
	var nad struct {
		Metadata kube.Meta `json:"metadata"`
		Spec     struct {
			Config string `json:"config"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(text, &nad); err != nil {
		return Network{}, fmt.Errorf("a network-attachment-definition: %w", err)
	}
	n := Network{Namespace: nad.Metadata.Namespace, Name: nad.Metadata.Name, Resource: nad.Metadata.Annotations[resourceKey]}
	type plugin struct {
		Type   string `json:"type"`
		Device string `json:"device"`
		PCI    string `json:"pciBusID"`
	}
	var config struct {
		plugin
		Name    string   `json:"name"`
		Plugins []plugin `json:"plugins"`
	}
	err := errors.New("it is too long")
	if len(nad.Spec.Config) <= maxConfig {
		err = json.Unmarshal([]byte(cmp.Or(nad.Spec.Config, "{}")), &config)
	}
	if err != nil {
		return Network{}, fmt.Errorf("the configuration of network %s: %w", &n, err)
	}
	first := config.plugin
	if len(config.Plugins) > 0 {
		first = config.Plugins[0]
	}
	n.Config, n.kind, n.device, n.pci = cmp.Or(config.Name, n.Name), first.Type, first.Device, first.PCI
	return n, nil
}

// naturally compares two names so that numbers in them are sorted by value: net2 comes before
// net10.
func naturally(a, b string) int {
	for a != "" && b != "" {
		x, y := digits(a), digits(b)
		if x == 0 || y == 0 {
			if a[0] != b[0] {
				return cmp.Compare(a[0], b[0])
			}
			a, b = a[1:], b[1:]
			continue
		}
		p, q := strings.TrimLeft(a[:x], "0"), strings.TrimLeft(b[:y], "0")
		if c := cmp.Or(cmp.Compare(len(p), len(q)), cmp.Compare(p, q)); c != 0 {
			return c
		}
		a, b = a[x:], b[y:]
	}
	return cmp.Compare(a, b)
}

// digits returns the number of digits at the beginning of s.
func digits(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }
