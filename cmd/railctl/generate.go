package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/pkg/netconf"
)

func newGenerate() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Print manifests for the rails of a cluster",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(newGenerateNADs())
	return cmd
}

// The values of --type.
const (
	hostDeviceType = "host-device"
	macvlanType    = "macvlan"
)

// The annotations of Multus.
const (
	networksKey = "k8s.v1.cni.cncf.io/networks"
	resourceKey = "k8s.v1.cni.cncf.io/resourceName"
)

// mostRails bounds the rails of a command: a NAD is printed for each.
const mostRails = 64

// railWord is replaced by the number of the rail.
const railWord = "{rail}"

// railNetworks has the flags of "railctl generate nads".
type railNetworks struct {
	rails     string
	addresses string // of each rail, with railWord
	gateway   string // the same
	resource  string
	name      string
	namespace string
	kind      string
	mtu       int
	rdma      string
	one       bool
	sameHost  bool
	pod       bool
}

func newGenerateNADs() *cobra.Command {
	var g railNetworks
	cmd := &cobra.Command{
		Use:   "nads --rails RAILS --range RANGE",
		Short: "Print a network for each rail, and how a pod asks for them",
		Long: `Print a NetworkAttachmentDefinition for each rail, for "kubectl apply -f -". Each
selects its NIC by "rail", so one network serves all nodes: the node file of each node
has the rails of its NICs ("railctl rails discover").

RANGE is a range of whereabouts. In the range and in the gateway {rail} stands for the
number of the rail. The ranges of two rails must not overlap.

With --resource each network has the annotation k8s.v1.cni.cncf.io/resourceName, so
that Multus passes it the device that the kubelet has allocated. With host-device it is
RESOURCE_rail_N: RESOURCE is a pool with the mode perRail. With macvlan, which shares
the NIC, it is RESOURCE: a pool with the mode shared. Without --resource the kubelet
does not know that a NIC is lent, and the pod gets no RDMA char devices.

With --one there is one NetworkAttachmentDefinition for all rails: it takes the rail of
the NIC that the pod was allocated ("rail": "auto"), and the pod names it once for each
rail. RESOURCE is then a pool with the mode exclusive, of which the pod requests as many
devices. --same-host gives all interfaces of a pod the same host part of the address.
Each node then takes addresses in blocks of 16 ("block_size").

The lines that a pod needs are printed as a comment, or with --pod as an example
pod. The command reads nothing from the node or the cluster.`,
		Example: `  railctl generate nads --rails 0-7 --range '172.31.{rail}.0/24' --resource rdma/roce | kubectl apply -f -
  railctl generate nads --rails 0,4 --range '10.{rail}.0.0/16' --gateway '10.{rail}.0.1' --pod
  railctl generate nads --rails 0-7 --range '10.{rail}.0.0/16' --resource rdma/roce --one --same-host --pod
  railctl generate nads --rails 2 --range 192.168.111.0/24 --type macvlan --resource rdma/hca_shared`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&g.rails, "rails", "", `rails, as "0-7" or "0,2,4-6"`)
	flags.StringVar(&g.addresses, "range", "", `range of each rail's addresses, as "172.31.{rail}.0/24"`)
	flags.StringVar(&g.gateway, "gateway", "", `address of each rail's gateway, which is handed out to no pod, as "172.31.{rail}.1"`)
	flags.StringVar(&g.resource, "resource", "", "name of a pool of the device plugin, as rdma/roce")
	flags.StringVar(&g.name, "name", "rail-net", "name of the networks, to which -N is added")
	flags.StringVar(&g.namespace, "namespace", "", "namespace of the networks and the pod")
	flags.StringVar(&g.kind, "type", hostDeviceType, "plugin: host-device or macvlan")
	flags.IntVar(&g.mtu, "mtu", 0, "MTU in the pod; 0 keeps that of the NIC")
	flags.StringVar(&g.rdma, "rdma", "", `key "rdma" of the networks: auto, required or off`)
	flags.BoolVar(&g.one, "one", false, "print one network for all rails; with host-device and --resource")
	flags.BoolVar(&g.sameHost, "same-host", false, "give the interfaces of a pod the same host part on every rail; with --one")
	flags.BoolVar(&g.pod, "pod", false, "also print an example pod")
	for _, name := range []string{"rails", "range"} {
		_ = cmd.MarkFlagRequired(name) // fails only for a flag that does not exist
	}
	// It fails only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("type", cobra.FixedCompletions([]string{hostDeviceType, macvlanType}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		text, err := g.manifest()
		if err != nil {
			return err
		}
		_, err = fmt.Fprint(cmd.OutOrStdout(), text)
		return err
	}
	return cmd
}

// network is the CNI configuration of a rail, in the order of its keys.
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
		// BlockSize is set with SameHost, which needs it on the cluster's pools.
		BlockSize int `json:"block_size,omitempty"`
	} `json:"ipam"`
}

// sameHostBlocks is the block_size of networks with sameHost.
const sameHostBlocks = 16

// manifest returns the networks and the pod as YAML.
func (g *railNetworks) manifest() (string, error) {
	rails, err := g.check()
	if err != nil {
		return "", err
	}
	var documents []string
	var taken []addressRange
	for _, rail := range rails {
		config, own, err := g.network(rail)
		if err != nil {
			return "", err
		}
		for _, other := range taken {
			if own.overlaps(other) {
				return "", fmt.Errorf("--range %s: the addresses of rail %d and rail %d overlap; put %s where it makes them differ", g.addresses, other.rail, rail, railWord)
			}
		}
		taken = append(taken, own)
		if !g.one {
			documents = append(documents, g.nad(g.nameOf(rail), g.resourceOf(rail), config))
		}
	}
	if g.one {
		config, err := g.networkOfAll(rails)
		if err != nil {
			return "", err
		}
		documents = append(documents, g.nad(g.name, g.resource, config))
	}
	if g.pod {
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

// check checks the flags that no parser of a plugin checks, and returns the rails.
func (g *railNetworks) check() ([]int, error) {
	if g.kind != hostDeviceType && g.kind != macvlanType {
		return nil, fmt.Errorf("--type %q: use %s or %s", g.kind, hostDeviceType, macvlanType)
	}
	for flag, name := range map[string]string{"name": g.name, "namespace": g.namespace} {
		if flag == "namespace" && name == "" {
			continue
		}
		if !labelName.MatchString(name) {
			return nil, fmt.Errorf("--%s %q is not a valid name: use lower-case letters, digits and hyphens, at most 60, and begin with a letter", flag, name)
		}
	}
	if g.resource != "" && !resourceName.MatchString(g.resource) {
		return nil, fmt.Errorf("--resource %q is not the name of an extended resource: write PREFIX/NAME, such as rdma/roce", g.resource)
	}
	for flag, text := range map[string]string{"range": g.addresses, "gateway": g.gateway} {
		for _, p := range placeholder.FindAllString(text, -1) {
			if p != railWord {
				return nil, fmt.Errorf("--%s %s: %q is not a placeholder; write %s", flag, text, p, railWord)
			}
		}
	}
	switch {
	case g.sameHost && !g.one:
		return nil, errors.New("--same-host is for one network of all rails: add --one")
	case g.one && g.kind == macvlanType:
		return nil, fmt.Errorf("--one is for host-device, whose NIC is the one that the pod was allocated; a %s needs a network for each rail", macvlanType)
	case g.one && g.resource == "":
		return nil, errors.New("--one needs --resource, a pool with the mode exclusive: the NIC is the one that the pod was allocated")
	}
	return parseRails(g.rails)
}

// parseRails returns the numbers in a list such as "0-3,6", ascending.
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
		if len(rails)+int(to-from) >= mostRails {
			return nil, fmt.Errorf("--rails %q: more than %d rails; print them in several runs", list, mostRails)
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

// addressRange has the addresses of a rail's network, both included.
type addressRange struct {
	rail        int
	first, last netip.Addr
}

func (r addressRange) overlaps(other addressRange) bool {
	return r.first.BitLen() == other.first.BitLen() && r.first.Compare(other.last) <= 0 && other.first.Compare(r.last) <= 0
}

// network returns the configuration of a rail's network, and its addresses. The plugins'
// own parsers have read it.
func (g *railNetworks) network(rail int) (config []byte, own addressRange, err error) {
	of := func(text string) string { return strings.ReplaceAll(text, railWord, strconv.Itoa(rail)) }
	n := network{CNIVersion: "1.0.0", Name: g.nameOf(rail), Type: g.kind, Rail: rail, MTU: g.mtu, RDMA: g.rdma}
	n.IPAM.Type, n.IPAM.Range, n.IPAM.Gateway = "whereabouts", of(g.addresses), of(g.gateway)
	if config, err = json.MarshalIndent(n, "  ", "  "); err != nil {
		return nil, own, err
	}
	if g.kind == macvlanType {
		_, err = netconf.ParseMacvlan(config, netconf.Args{})
	} else {
		_, err = netconf.ParseHostDevice(config)
	}
	if err != nil {
		return nil, own, fmt.Errorf("rail %d: %w", rail, err)
	}
	addresses, err := netconf.ParseWhereabouts(config, "", nil)
	if err != nil {
		return nil, own, fmt.Errorf("rail %d: %w", rail, err)
	}
	if len(addresses.Ranges) != 1 {
		return nil, own, fmt.Errorf("--range %q is not one range of addresses; write it as 172.31.%s.0/24", n.IPAM.Range, railWord)
	}
	r := addresses.Ranges[0]
	if g.gateway != "" && !r.Prefix.Contains(addresses.Gateway) {
		return nil, own, fmt.Errorf("rail %d: the gateway %s is not in %s; correct --gateway or --range", rail, addresses.Gateway, r.Prefix)
	}
	own = addressRange{rail: rail, first: r.Start, last: r.End}
	if !own.first.IsValid() {
		own.first = r.Prefix.Addr()
	}
	if !own.last.IsValid() {
		own.last = lastOf(r.Prefix)
	}
	return config, own, nil
}

// networkOfAll returns the configuration of one network for all rails. The plugin's own parser
// has read it, and expanded it for a node with these rails.
func (g *railNetworks) networkOfAll(rails []int) (config []byte, err error) {
	of := func(text string) string { return strings.ReplaceAll(text, railWord, "$"+railWord) }
	n := network{CNIVersion: "1.0.0", Name: g.name, Type: g.kind, Rail: "auto", MTU: g.mtu, RDMA: g.rdma}
	n.IPAM.Type, n.IPAM.Range, n.IPAM.Gateway, n.IPAM.SameHost = "whereabouts", of(g.addresses), of(g.gateway), g.sameHost
	if g.sameHost {
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
		expanded, err := parsed.Expanded(netconf.Variables{Rail: &rail, Rails: rails})
		if err == nil {
			_, err = netconf.ParseWhereabouts(expanded, "", nil)
		}
		if err != nil {
			return nil, fmt.Errorf("rail %d: %w", rail, err)
		}
	}
	return config, nil
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	bytes := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes) // as long as an address
	return last
}

func (g *railNetworks) nameOf(rail int) string { return fmt.Sprintf("%s-%d", g.name, rail) }

// resourceOf returns the resource of a rail's network, "" without one.
func (g *railNetworks) resourceOf(rail int) string {
	if g.resource == "" || g.kind == macvlanType {
		return g.resource
	}
	return fmt.Sprintf("%s_rail_%d", g.resource, rail)
}

// nad returns a NetworkAttachmentDefinition as YAML. A JSON object of names, addresses and
// numbers has no single quote.
func (g *railNetworks) nad(name, resource string, config []byte) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata:\n  name: %s\n", name)
	if g.namespace != "" {
		fmt.Fprintf(&b, "  namespace: %s\n", g.namespace)
	}
	if resource != "" {
		fmt.Fprintf(&b, "  annotations:\n    %s: %s\n", resourceKey, resource)
	}
	fmt.Fprintf(&b, "spec:\n  config: '%s'\n", config)
	return b.String()
}

// names returns the networks as the value of the pod's annotation.
func (g *railNetworks) names(rails []int) string {
	var names []string
	for _, rail := range rails {
		if g.one { // Multus passes one device of the resource each time
			names = append(names, g.name)
			continue
		}
		names = append(names, g.nameOf(rail))
	}
	return strings.Join(names, ", ")
}

// resources returns the lines of a pod's resources with all networks. One device of a shared
// pool stands for all its NICs.
func (g *railNetworks) resources(rails []int) []string {
	if g.one {
		return []string{fmt.Sprintf("%s: %d", g.resource, len(rails))}
	}
	var all []string
	for _, rail := range rails {
		if line := g.resourceOf(rail) + ": 1"; line != ": 1" && !slices.Contains(all, line) {
			all = append(all, line)
		}
	}
	return all
}

// comment returns the lines that a pod needs, as a comment.
func (g *railNetworks) comment(rails []int) string {
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
func (g *railNetworks) examplePod(rails []int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Pod\nmetadata:\n  name: %s-pod\n", g.name)
	if g.namespace != "" {
		fmt.Fprintf(&b, "  namespace: %s\n", g.namespace)
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
