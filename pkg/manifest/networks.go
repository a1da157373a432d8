package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/iprange"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
)

// These are the plugins that a network can have.
const (
	HostDevice = "host-device"
	Macvlan    = "macvlan"
)

// These are the annotations that Multus reads.
const (
	networksKey = "k8s.v1.cni.cncf.io/networks"
	resourceKey = "k8s.v1.cni.cncf.io/resourceName"
)

// maxRails is the maximum number of rails of one command, because a NAD is printed for each rail.
const maxRails = 64

// railWord is the placeholder that is replaced by the number of the rail.
const railWord = "{rail}"

// Networks describes the networks of a cluster's rails. The fields are the flags of "railctl
// generate nads". Errors name these flags.
type Networks struct {
	Rails     string // --rails: a list of numbers and ranges, "0-3,6"
	Range     string // --range: the addresses of each rail, with "{rail}" for its number
	Gateway   string // --gateway: the gateway of each rail, with "{rail}" for its number; "" for none
	Resource  string // --resource: the device pool; "" for none
	Name      string // --name: the name of each network, to which -N is added
	Namespace string // --namespace: if "", kubectl chooses the namespace
	Type      string // --type: HostDevice or Macvlan
	MTU       int    // --mtu: 0 keeps the NIC's MTU
	RDMA      string // --rdma: the key "rdma" of the networks; "" for no key
	One       bool   // --one: one network for all rails
	SameHost  bool   // --same-host: the same host part of the address on every rail
	Pod       bool   // --pod: also print a pod that asks for all networks
}

// network is the CNI configuration of a rail. The fields are in the order in which the keys are
// printed.
type network struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Type       string `json:"type"`
	Rail       any    `json:"rail"` // a number, or "auto"
	MTU        int    `json:"mtu,omitempty"`
	RDMA       string `json:"rdma,omitempty"`
	IPAM       struct {
		Type     string `json:"type"`
		Range    string `json:"range"`
		Gateway  string `json:"gateway,omitempty"`
		SameHost bool   `json:"sameHost,omitempty"`
		// BlockSize is set together with SameHost, because pools of the cluster need it for
		// SameHost.
		BlockSize int `json:"block_size,omitempty"`
	} `json:"ipam"`
}

// sameHostBlocks is the value of block_size in networks with sameHost.
const sameHostBlocks = 16

// YAML returns the networks and the pod as a manifest for "kubectl apply". Each network was checked
// with the plugins' own parsers.
func (g *Networks) YAML() (string, error) {
	rails, err := g.check()
	if err != nil {
		return "", err
	}
	var documents []string
	var taken []iprange.Range // the ranges of earlier rails
	for _, rail := range rails {
		config, rng, err := g.network(rail)
		if err != nil {
			return "", err
		}
		for i, other := range taken {
			if rng.Overlaps(other) {
				return "", fmt.Errorf("--range %s: the addresses of rail %d and rail %d overlap; put %s where it makes the addresses differ",
					g.Range, rails[i], rail, railWord)
			}
		}
		taken = append(taken, rng)
		if !g.One {
			documents = append(documents, g.nad(g.nameOf(rail), g.resourceOf(rail), config))
		}
	}
	if g.One {
		config, err := g.networkOfAll(rails)
		if err != nil {
			return "", err
		}
		documents = append(documents, g.nad(g.Name, g.Resource, config))
	}
	if g.Pod {
		documents = append(documents, g.examplePod(rails))
	} else {
		documents[0] = g.comment(rails) + documents[0]
	}
	return strings.Join(documents, "---\n"), nil
}

var (
	labelName    = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,58}[a-z0-9])?$`)                                              // RFC 1123, as Kubernetes reads it, with room for -N
	resourceName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]{0,53}[A-Za-z0-9])?$`) // with room for _rail_N in 63 characters
	placeholder  = regexp.MustCompile(`\{[^}]*\}?`)
)

// check checks the flags that the parsers of the plugins do not check. It returns the rails.
func (g *Networks) check() ([]int, error) {
	if g.Type != HostDevice && g.Type != Macvlan {
		return nil, fmt.Errorf("--type %q: use %s or %s", g.Type, HostDevice, Macvlan)
	}
	for flag, name := range map[string]string{"name": g.Name, "namespace": g.Namespace} {
		if flag == "namespace" && name == "" {
			continue
		}
		if !labelName.MatchString(name) {
			return nil, fmt.Errorf("--%s %q is not a valid name: use lower-case letters, digits and hyphens, at most 60, and begin with a letter", flag, name)
		}
	}
	if g.Resource != "" && !resourceName.MatchString(g.Resource) {
		return nil, fmt.Errorf("--resource %q is not the name of an extended resource: write PREFIX/NAME, such as rdma/roce", g.Resource)
	}
	for flag, text := range map[string]string{"range": g.Range, "gateway": g.Gateway} {
		for _, p := range placeholder.FindAllString(text, -1) {
			if p != railWord {
				return nil, fmt.Errorf("--%s %s: %q is not a placeholder; write %s", flag, text, p, railWord)
			}
		}
	}
	switch {
	case g.SameHost && !g.One:
		return nil, errors.New("--same-host needs one network for all rails; add --one")
	case g.One && g.Type == Macvlan:
		return nil, fmt.Errorf("--one is for host-device, whose NIC is the one that was allocated to the pod; a %s needs a network for each rail",
			Macvlan)
	case g.One && g.Resource == "":
		return nil, errors.New("--one needs --resource, a pool with the mode exclusive: the NIC is the one that was allocated to the pod")
	}
	return parseRails(g.Rails)
}

// parseRails returns the numbers in a list such as "0-3,6", in ascending order.
func parseRails(list string) ([]int, error) {
	var rails []int
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		to, toErr := strconv.ParseUint(last, 10, 16)
		if err := errors.Join(err, toErr); err != nil || from > to {
			return nil, fmt.Errorf("--rails %q: %q is not a rail or an ascending range of rails; write them as 0-7 or 0,2,4-6", list, part)
		}
		if len(rails)+int(to-from) >= maxRails {
			return nil, fmt.Errorf("--rails %q: more than %d rails; print them in several runs", list, maxRails)
		}
		for rail := from; rail <= to; rail++ {
			if slices.Contains(rails, int(rail)) {
				return nil, fmt.Errorf("--rails %q: rail %d is listed twice; remove one", list, rail)
			}
			rails = append(rails, int(rail))
		}
	}
	slices.Sort(rails)
	return rails, nil
}

// network returns the configuration of a rail's network and the range of its addresses. The
// configuration was checked with the plugins' own parsers.
func (g *Networks) network(rail int) (config []byte, rng iprange.Range, err error) {
	replace := func(text string) string { return strings.ReplaceAll(text, railWord, strconv.Itoa(rail)) }
	n := network{CNIVersion: "1.0.0", Name: g.nameOf(rail), Type: g.Type, Rail: rail, MTU: g.MTU, RDMA: g.RDMA}
	n.IPAM.Type, n.IPAM.Range, n.IPAM.Gateway = "whereabouts", replace(g.Range), replace(g.Gateway)
	if config, err = json.MarshalIndent(n, "  ", "  "); err != nil {
		return nil, rng, err
	}
	if g.Type == Macvlan {
		_, err = netconf.ParseMacvlan(config, netconf.Args{})
	} else {
		_, err = netconf.ParseHostDevice(config)
	}
	if err != nil {
		return nil, rng, fmt.Errorf("rail %d: %w", rail, err)
	}
	addresses, err := ipamconf.ParseWhereabouts(config, "", nil)
	if err != nil {
		return nil, rng, fmt.Errorf("rail %d: %w", rail, err)
	}
	if len(addresses.Ranges) != 1 {
		return nil, rng, fmt.Errorf("--range %q is not one range of addresses; write it as 172.31.%s.0/24", n.IPAM.Range, railWord)
	}
	r := addresses.Ranges[0]
	if g.Gateway != "" && !r.Prefix.Contains(addresses.Gateway) {
		return nil, rng, fmt.Errorf("rail %d: the gateway %s is not in %s; correct --gateway or --range", rail, addresses.Gateway, r.Prefix)
	}
	return config, r.Bounds(), nil
}

// networkOfAll returns the configuration of one network for all rails. The configuration was
// checked with the plugin's own parser, which has also expanded it for a node with these rails.
func (g *Networks) networkOfAll(rails []int) (config []byte, err error) {
	replace := func(text string) string { return strings.ReplaceAll(text, railWord, "$"+railWord) }
	n := network{CNIVersion: "1.0.0", Name: g.Name, Type: g.Type, Rail: "auto", MTU: g.MTU, RDMA: g.RDMA}
	n.IPAM.Type, n.IPAM.Range, n.IPAM.Gateway, n.IPAM.SameHost = "whereabouts", replace(g.Range), replace(g.Gateway), g.SameHost
	if g.SameHost {
		n.IPAM.BlockSize = sameHostBlocks
	}
	if config, err = json.MarshalIndent(n, "  ", "  "); err != nil {
		return nil, err
	}
	parsed, err := netconf.ParseHostDevice(config)
	if err != nil {
		return nil, err
	}
	for _, rail := range rails {
		expanded, err := parsed.Expanded(ipamconf.Variables{Rail: &rail, Rails: rails})
		if err == nil {
			_, err = ipamconf.ParseWhereabouts(expanded, "", nil)
		}
		if err != nil {
			return nil, fmt.Errorf("rail %d: %w", rail, err)
		}
	}
	return config, nil
}

func (g *Networks) nameOf(rail int) string { return fmt.Sprintf("%s-%d", g.Name, rail) }

// resourceOf returns the resource of a rail's network. It returns "" if the network has none.
func (g *Networks) resourceOf(rail int) string {
	if g.Resource == "" || g.Type == Macvlan {
		return g.Resource
	}
	return fmt.Sprintf("%s_rail_%d", g.Resource, rail)
}

// nad returns a NetworkAttachmentDefinition as YAML. config can stand in single quotes, because a
// JSON object of names, addresses and numbers has no single quote.
func (g *Networks) nad(name, resource string, config []byte) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata:\n  name: %s\n", name)
	if g.Namespace != "" {
		fmt.Fprintf(&b, "  namespace: %s\n", g.Namespace)
	}
	if resource != "" {
		fmt.Fprintf(&b, "  annotations:\n    %s: %s\n", resourceKey, resource)
	}
	fmt.Fprintf(&b, "spec:\n  config: '%s'\n", config)
	return b.String()
}

// names returns the value of the pod's annotation, which lists the networks.
func (g *Networks) names(rails []int) string {
	var names []string
	for _, rail := range rails {
		if g.One { // each time that a network is listed, Multus passes one device of the resource
			names = append(names, g.Name)
			continue
		}
		names = append(names, g.nameOf(rail))
	}
	return strings.Join(names, ", ")
}

// resources returns the lines with the resources that a pod with all networks needs. One device of
// a shared pool is enough for all NICs of the pool.
func (g *Networks) resources(rails []int) []string {
	if g.One {
		return []string{fmt.Sprintf("%s: %d", g.Resource, len(rails))}
	}
	var all []string
	for _, rail := range rails {
		if line := g.resourceOf(rail) + ": 1"; line != ": 1" && !slices.Contains(all, line) {
			all = append(all, line)
		}
	}
	return all
}

// comment returns the lines that a pod needs, as comment lines.
func (g *Networks) comment(rails []int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# A pod needs in metadata.annotations:\n#   %s: %s\n", networksKey, g.names(rails))
	resources := g.resources(rails)
	if len(resources) == 0 {
		b.WriteString("# The networks have no resource: the kubelet does not count these NICs, and the pod gets no RDMA char devices.\n")
		return b.String()
	}
	b.WriteString("# and in the resources.limits of a container:\n")
	for _, r := range resources {
		fmt.Fprintf(&b, "#   %s\n", r)
	}
	return b.String()
}

// examplePod returns a pod with all networks.
func (g *Networks) examplePod(rails []int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Pod\nmetadata:\n  name: %s-pod\n", g.Name)
	if g.Namespace != "" {
		fmt.Fprintf(&b, "  namespace: %s\n", g.Namespace)
	}
	fmt.Fprintf(&b, "  annotations:\n    %s: %s\n", networksKey, g.names(rails))
	b.WriteString("spec:\n  containers:\n  - name: rdma\n    image: ghcr.io/spidernet-io/rdma-tools:v12.5.7\n    command: [sleep, infinity]\n")
	if resources := g.resources(rails); len(resources) > 0 {
		b.WriteString("    resources:\n      limits:\n")
		for _, r := range resources {
			fmt.Fprintf(&b, "        %s\n", r)
		}
	}
	b.WriteString("    securityContext:\n      capabilities:\n        add: [IPC_LOCK]\n")
	return b.String()
}
