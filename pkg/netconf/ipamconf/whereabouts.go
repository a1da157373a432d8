package ipamconf

import (
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/iprange"
	"github.com/rail-cni/rail-cni/pkg/netconf/document"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// The values of the key "store".
const (
	StoreLocal      = "local"
	StoreKubernetes = "kubernetes"
)

// The values of the key "allocation", which decides which free address is handed out.
const (
	allocateLowest = "lowest"
	allocateRotate = "rotate"
)

// maxBlockSize is the largest block_size.
const maxBlockSize = 4096

// Whereabouts is the configuration of the whereabouts IPAM plugin. It has the values of the "ipam"
// object, in which the flat file fills the empty keys, and the needed values from CNI_ARGS and from
// the network config around the object.
type Whereabouts struct {
	CNIVersion string // "" if the config has none
	Name       string // the network's name
	StateDir   string // absolute path; the address pools are in its directory "ipam"

	// Store is "", [StoreLocal] or [StoreKubernetes].
	Store string
	// Kubeconfig is a path, or "" if neither the config nor the flat file has
	// one.
	Kubeconfig string
	// FlatFile is the flat file that filled the empty keys, "" if none did.
	FlatFile string

	Ranges       []WhereaboutsRange
	Requested    []netip.Addr // runtimeConfig.ips and args.cni.ips, without duplicates
	Static       []WhereaboutsStatic
	Gateway      netip.Addr // invalid if there is none
	AllowGateway bool
	Routes       []*types.Route // no element is nil
	DNS          types.DNS

	NetworkName   string // the address space, "" for the unnamed one
	Overlapping   bool   // enable_overlapping_ranges, default true
	NodeSliceSize int    // prefix length, 0 without node slices
	BlockSize     int    // addresses, a power of two; 0 without blocks
	Rotate        bool   // "allocation": "rotate"
	// NodePrefix is set with "prefix": "node". It means that the range is a prefix of this node
	// alone.
	NodePrefix bool
	// SameHost is set with "sameHost": true. It has the networks of the ranges of all rails of the
	// node, sorted by address. Otherwise it is nil.
	SameHost []netip.Prefix
	// ConfigurationPath is a flat file, or the directory of "nodename".
	ConfigurationPath string
	LogFile, LogLevel string
	// Closed is an error that names the paths in the config that the node file forbids. The keys
	// with these paths are treated as missing.
	Closed error
	// Unlogged is the error for a log file that the node file forbids without a list of paths. The
	// network is not refused because of it.
	Unlogged error

	Pod WhereaboutsPod

	document.Attachments
}

// WhereaboutsRange is one range, from which an attachment gets one address.
type WhereaboutsRange struct {
	Prefix      netip.Prefix   // masked
	Start, End  netip.Addr     // bounds as configured, invalid if they are missing or unreadable
	Exclude     []netip.Prefix // masked
	ExcludeText []string       // Exclude as the user wrote it
}

// WhereaboutsStatic is an address that is not taken from a range.
type WhereaboutsStatic struct {
	Address netip.Prefix // not masked
	Gateway netip.Addr   // invalid if there is none
}

// WhereaboutsPod is the pod that CNI_ARGS names. All fields are empty outside Kubernetes.
type WhereaboutsPod struct {
	Namespace, Name, UID string
}

// Ref returns "namespace/name", or "" if CNI_ARGS names no pod.
func (p WhereaboutsPod) Ref() string {
	if p.Name == "" {
		return ""
	}
	return p.Namespace + "/" + p.Name
}

// WhereaboutsFlatFiles returns the paths of the flat files of whereabouts installations, in the
// order of preference. These are whereabouts' own three paths, and those below the CNI directories
// of k3s, RKE2 and MicroK8s (see confDirs).
func WhereaboutsFlatFiles() []string {
	const name = "/whereabouts.d/whereabouts.conf"
	return []string{
		"/etc/kubernetes/cni/net.d" + name, "/etc/cni/net.d" + name, "/host/etc/cni/net.d" + name,
		"/var/lib/rancher/k3s/agent/etc/cni/net.d" + name, "/var/lib/rancher/rke2/agent/etc/cni/net.d" + name,
		"/var/snap/microk8s/current/args/cni-network" + name,
	}
}

// ParseWhereabouts reads the network config from stdin, and CNI_ARGS. It looks for a flat file at
// the config's own "configuration_path" first, and then at flatFiles. The first file that exists
// fills the keys that are empty in the config.
//
// Errors have the kinds Decode (not JSON, or not of the documented types),
// InvalidEnv (CNI_ARGS), IO (a flat file that cannot be read) and
// InvalidConfig.
func ParseWhereabouts(stdin []byte, cniArgs string, flatFiles []string) (*Whereabouts, error) {
	return parseWhereabouts(stdin, cniArgs, flatFiles, func(*whereaboutsNet) (closed, unlogged error) { return nil, nil })
}

// ParseWhereaboutsOn is like [ParseWhereabouts], on a node with this node file: the config may name
// only paths that the node file permits. The paths in a flat file are not restricted.
func ParseWhereaboutsOn(node *nodefile.File, stdin []byte, cniArgs string, flatFiles []string) (*Whereabouts, error) {
	return parseWhereabouts(stdin, cniArgs, flatFiles, func(net *whereaboutsNet) (closed, unlogged error) { return net.keepOpen(node) })
}

func parseWhereabouts(stdin []byte, cniArgs string, flatFiles []string, keepOpen func(*whereaboutsNet) (closed, unlogged error)) (*Whereabouts, error) {
	var net whereaboutsNet
	if err := document.Decode(stdin, &net, "the network configuration"); err != nil {
		return nil, err
	}
	if net.IPAM == nil {
		return nil, failure.New(failure.InvalidConfig, "IPAM config missing 'ipam' key").Cure(`add "ipam": {"type": "whereabouts", "range": "..."}`)
	}
	if err := unexpanded(stdin); err != nil {
		return nil, err
	}
	args, err := parseWhereaboutsArgs(cniArgs)
	if err != nil {
		return nil, err
	}
	if _, err := nodefile.StateDir(net.StateDir); err != nil {
		return nil, err
	}
	closed, unlogged := keepOpen(&net)
	overlapping := net.IPAM.Overlapping
	flatFile, err := net.IPAM.fillFromFlatFile(flatFiles)
	if err != nil {
		return nil, err
	}

	c := &Whereabouts{
		CNIVersion: net.CNIVersion, Name: net.Name, FlatFile: flatFile,
		Store: net.IPAM.Store, Kubeconfig: net.IPAM.Kubernetes.Kubeconfig,
		AllowGateway: net.IPAM.AllowGateway, Routes: net.IPAM.Routes, DNS: net.IPAM.DNS,
		NetworkName: net.IPAM.NetworkName, Overlapping: overlapping,
		ConfigurationPath: net.IPAM.ConfigurationPath,
		LogFile:           net.IPAM.LogFile, LogLevel: net.IPAM.LogLevel,
		Closed: closed, Unlogged: unlogged,
		Pod:         args.pod(),
		Attachments: net.Attachments,
	}
	if c.StateDir, err = nodefile.StateDir(net.StateDir); err != nil {
		return nil, err
	}
	return c, c.read(&net, args)
}

// read checks and converts all values that are not plain strings.
func (c *Whereabouts) read(net *whereaboutsNet, args whereaboutsArgs) error {
	switch c.Store {
	case "", StoreLocal, StoreKubernetes:
	default:
		return failure.New(failure.InvalidConfig, "unknown store %q", c.Store).Cure(`use "local" or "kubernetes"`)
	}
	switch net.IPAM.Allocation {
	case "", allocateLowest:
	case allocateRotate:
		c.Rotate = true
	default:
		return failure.New(failure.InvalidConfig, "unknown allocation %q", net.IPAM.Allocation).Cure(`use "lowest" or "rotate"`)
	}
	for i, r := range c.Routes {
		if r == nil {
			return failure.New(failure.InvalidConfig, "routes[%d] is null", i).Cure("remove the entry")
		}
	}
	if err := c.readRanges(net.IPAM); err != nil {
		return err
	}
	if err := c.readGateway(net.IPAM.Gateway); err != nil {
		return err
	}
	if err := c.readRequested(net); err != nil {
		return err
	}
	if err := c.readStatic(net.IPAM.Addresses, args); err != nil {
		return err
	}
	if err := c.readSliceSize(net.IPAM.NodeSliceSize); err != nil {
		return err
	}
	if err := c.readBlockSize(net.IPAM.BlockSize); err != nil {
		return err
	}
	if err := c.readRails(net.IPAM); err != nil {
		return err
	}
	return c.onePerFamily()
}

func (c *Whereabouts) readGateway(text string) error {
	if text == "" {
		return nil
	}
	gw, ok := sloppyAddr(text)
	if !ok {
		return failure.New(failure.InvalidConfig, "couldn't parse gateway IP: %s", text).Cure("give one address, without a prefix length")
	}
	c.Gateway = gw
	return nil
}

func (c *Whereabouts) readStatic(addresses []whereaboutsAddress, args whereaboutsArgs) error {
	for _, a := range addresses {
		p, ok := sloppyPrefix(a.Address)
		if !ok {
			return failure.New(failure.InvalidConfig, "invalid CIDR in addresses %s", a.Address).Cure("write it as address/length")
		}
		c.Static = append(c.Static, WhereaboutsStatic{Address: p, Gateway: iprange.AddrOf(a.Gateway)})
	}
	return args.addStatic(c)
}

func (c *Whereabouts) readRequested(net *whereaboutsNet) error {
	seen := map[netip.Addr]bool{}
	for _, text := range append(net.RuntimeConfig.IPs, net.Args.CNI.IPs...) {
		bare, _, _ := strings.Cut(strings.TrimSpace(text), "/")
		addr, ok := sloppyAddr(bare)
		if !ok {
			return failure.New(failure.InvalidConfig, "cannot read the requested address %q", text).Cure("give an address, with or without a prefix length")
		}
		if !seen[addr] {
			seen[addr] = true
			c.Requested = append(c.Requested, addr)
		}
	}
	return nil
}

func (c *Whereabouts) readSliceSize(text string) error {
	if text == "" {
		return nil
	}
	n, _ := strconv.Atoi(strings.TrimPrefix(text, "/")) // if the text cannot be read, n is 0 or far too large
	if n < 1 || n > 128 {
		return failure.New(failure.InvalidConfig, "node_slice_size %q is not a prefix length", text).Cure(`write it as "/26" or "26"`)
	}
	c.NodeSliceSize = n
	return nil
}

// readBlockSize reads the number of addresses of a block.
func (c *Whereabouts) readBlockSize(n int) error {
	switch {
	case n == 0:
		return nil
	case n < 2 || n > maxBlockSize || n&(n-1) != 0:
		return failure.New(failure.InvalidConfig, "block_size %d is not a power of two from 2 to %d", n, maxBlockSize).
			Cure("give the number of addresses that a node takes at once, for example 16")
	case c.NodeSliceSize != 0:
		return failure.New(failure.InvalidConfig, "block_size and node_slice_size both divide the range among the nodes").Cure("remove one of them")
	}
	for _, r := range c.Ranges {
		if hosts := r.Prefix.Addr().BitLen() - r.Prefix.Bits(); n>>hosts > 1 {
			return failure.New(failure.InvalidConfig, "block_size %d is larger than the range %s", n, r.Prefix).Cure("use smaller blocks, or a larger range")
		}
	}
	c.BlockSize = n
	return nil
}

// onePerFamily returns an error if a result of the oldest versions cannot contain the addresses:
// such a result has room for one IPv4 and one IPv6 address, and the conversion silently drops the
// others.
func (c *Whereabouts) onePerFamily() error {
	switch c.CNIVersion {
	case "", "0.1.0", "0.2.0":
	default:
		return nil
	}
	v4, v6 := 0, 0
	count := func(a netip.Addr) {
		if a.Is4() {
			v4++
		} else {
			v6++
		}
	}
	for _, r := range c.Ranges {
		count(r.Prefix.Addr())
	}
	for _, s := range c.Static {
		count(s.Address.Addr())
	}
	if v4 > 1 || v6 > 1 {
		return failure.New(failure.InvalidConfig, "CNI version %s does not support more than 1 address per family", c.CNIVersion).
			Cure(`use "cniVersion": "0.3.1" or later`)
	}
	return nil
}

// whereaboutsNet is the network config as JSON. encoding/json matches keys in any case and accepts
// unknown keys, as users expect.
type whereaboutsNet struct {
	CNIVersion    string           `json:"cniVersion"`
	Name          string           `json:"name"`
	StateDir      string           `json:"stateDir"`
	IPAM          *whereaboutsIPAM `json:"ipam"`
	RuntimeConfig struct {
		IPs []string `json:"ips"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			IPs []string `json:"ips"`
		} `json:"cni"`
	} `json:"args"`
	document.Attachments
}

// keepOpen clears the keys that name a forbidden path of the host. It returns an error for each of
// these keys.
func (net *whereaboutsNet) keepOpen(n *nodefile.File) (closed, unlogged error) {
	var errs []error
	for _, k := range []struct {
		key   string
		value *string
	}{
		{nodefile.KeyStateDir, &net.StateDir},
		{nodefile.KeyKubeconfig, &net.IPAM.Kubernetes.Kubeconfig},
		{nodefile.KeyFlatFile, &net.IPAM.ConfigurationPath},
		{nodefile.KeyLogFile, &net.IPAM.LogFile},
	} {
		err := n.CheckPath(k.key, *k.value)
		if err == nil {
			continue
		}
		*k.value = ""
		if k.key == nodefile.KeyLogFile && !n.ListsPaths() {
			unlogged = err
		} else {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...), unlogged
}

// whereaboutsIPAM is the "ipam" object, and a flat file, as JSON.
type whereaboutsIPAM struct {
	Type string `json:"type"`

	Range      string             `json:"range"`
	RangeStart sloppyIP           `json:"range_start"`
	RangeEnd   sloppyIP           `json:"range_end"`
	Exclude    []string           `json:"exclude"`
	IPRanges   []whereaboutsBlock `json:"ipRanges"`

	Gateway      string               `json:"gateway"`
	AllowGateway bool                 `json:"allow_gateway"`
	Routes       []*types.Route       `json:"routes"`
	DNS          types.DNS            `json:"dns"`
	Addresses    []whereaboutsAddress `json:"addresses"`

	NetworkName   string `json:"network_name"`
	Overlapping   bool   `json:"enable_overlapping_ranges"`
	NodeSliceSize string `json:"node_slice_size"`
	BlockSize     int    `json:"block_size"`
	Store         string `json:"store"`
	Allocation    string `json:"allocation"`

	// The plugin that calls whereabouts writes RailRanges. With Prefix it also writes Range.
	SameHost   bool     `json:"sameHost"`
	RailRanges []string `json:"railRanges"`
	Prefix     string   `json:"prefix"`

	Kubernetes struct {
		Kubeconfig string `json:"kubeconfig"`
		APIRoot    string `json:"k8s_api_root"`
	} `json:"kubernetes"`
	ConfigurationPath string `json:"configuration_path"`
	LogFile           string `json:"log_file"`
	LogLevel          string `json:"log_level"`

	// These keys are accepted and have no effect, but a value of a wrong type is an error.
	Datastore           string `json:"datastore"`
	EtcdHost            string `json:"etcd_host"`
	EtcdUsername        string `json:"etcd_username"`
	EtcdPassword        string `json:"etcd_password"`
	EtcdKeyFile         string `json:"etcd_key_file"`
	EtcdCertFile        string `json:"etcd_cert_file"`
	EtcdCACertFile      string `json:"etcd_ca_cert_file"`
	LeaderLeaseDuration int    `json:"leader_lease_duration"`
	LeaderRenewDeadline int    `json:"leader_renew_deadline"`
	LeaderRetryPeriod   int    `json:"leader_retry_period"`
	ReconcilerCron      string `json:"reconciler_cron_expression"`
	SleepForRace        int    `json:"sleep_for_race"`
}

// whereaboutsBlock is an entry of "ipRanges". Its bounds must be addresses, whereas the bounds of
// the plain "range" may be any text.
type whereaboutsBlock struct {
	Range      string   `json:"range"`
	RangeStart net.IP   `json:"range_start"`
	RangeEnd   net.IP   `json:"range_end"`
	Exclude    []string `json:"exclude"`
}

type whereaboutsAddress struct {
	Address string `json:"address"`
	Gateway net.IP `json:"gateway"`
}

// UnmarshalJSON sets the only default that is not the zero value.
func (w *whereaboutsIPAM) UnmarshalJSON(data []byte) error {
	type plain whereaboutsIPAM
	p := plain{Overlapping: true}
	if err := json.Unmarshal(data, &p); err != nil {
		return err
	}
	*w = whereaboutsIPAM(p)
	return nil
}
