package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// ibdev2netdev is one run of "railctl ibdev2netdev".
type ibdev2netdev struct {
	stateDir  string
	pod       string
	container string
	netns     string
}

func newIbdev2netdev(stateDir *string) *cobra.Command {
	var c ibdev2netdev
	cmd := &cobra.Command{
		Use:   "ibdev2netdev [--pod NAMESPACE/NAME | --container ID | --netns PATH]",
		Short: "Say which RDMA device belongs to which interface, on the host or in a pod",
		Long: `Print a line for each port of an RDMA device that has an interface in the
network namespace, in the form of NVIDIA's script of the same name:

  mlx5_0 port 1 ==> net1 (Up)

Without a flag it is the host's; a pod needs no tools of its own. "Up" means
that the interface is up and has a carrier, as it does there.

The kernel is asked (not names or PCI addresses), so a line is there only if
both ends are: in exclusive mode the RDMA device and the interface are in that
namespace, in shared mode the interface is. A macvlan has no line: the port
belongs to its master, and "railctl show" says which one that is.

The exit code is 1 if this kernel has no RDMA, or something cannot be read; and
0 without any line if there is just none, which stderr says.`,
		Example: `  railctl ibdev2netdev
  railctl ibdev2netdev --pod default/gpu-rdma-pod-1
  railctl ibdev2netdev --netns /run/netns/x`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&c.pod, "pod", "", "a pod of this node, as NAMESPACE/NAME, that has an attachment")
	cmd.Flags().StringVar(&c.container, "container", "", "a container id that has an attachment, or how it begins")
	cmd.Flags().StringVar(&c.netns, "netns", "", "the path of a network namespace")
	cmd.MarkFlagsMutuallyExclusive("pod", "container", "netns")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c.stateDir = *stateDir
		return c.run(cmd)
	}
	return cmd
}

func (c *ibdev2netdev) run(cmd *cobra.Command) error {
	if err := requireRoot(); err != nil {
		return err
	}
	ns, err := c.where()
	if err != nil {
		return err
	}
	defer ns.Close()
	pairs, err := pairsIn(ns)
	if errors.Is(err, rdma.ErrNoRDMA) {
		err = fmt.Errorf("%w; load the driver of the NICs (mlx5_ib, bnxt_re, irdma, …)", err)
	}
	if err != nil {
		return err
	}
	if len(pairs) == 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "railctl: no port of an RDMA device has an interface in %s\n", c.what())
	}
	for _, p := range pairs {
		fmt.Fprintln(cmd.OutOrStdout(), p)
	}
	return nil
}

// what names the namespace to the person who asked for it.
func (c *ibdev2netdev) what() string {
	switch {
	case c.pod != "":
		return "pod " + c.pod
	case c.container != "":
		return "container " + c.container
	case c.netns != "":
		return "netns " + c.netns
	}
	return "the host netns"
}

// where opens the namespace that is asked for.
func (c *ibdev2netdev) where() (*link.Netns, error) {
	switch {
	case c.netns != "":
		return link.OpenNetns(c.netns)
	case c.pod == "" && c.container == "":
		return link.CurrentNetns()
	}
	if c.pod != "" && strings.Count(c.pod, "/") != 1 {
		return nil, fmt.Errorf("--pod %s: write it as NAMESPACE/NAME, for example default/%s", c.pod, c.pod)
	}
	found, err := c.attached()
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s has no living attachment on this node; \"railctl show\" lists those that there are", c.what())
	}
	if len(found) > 1 {
		var ids []string
		for _, r := range found {
			ids = append(ids, r.ContainerID)
		}
		return nil, fmt.Errorf("%s is not one but several containers (%s); choose one by --container", c.what(), strings.Join(ids, ", "))
	}
	ns, err := link.FindNetns(found[0].Netns.NetnsID, found[0].Netns.Path)
	if err == nil && ns == nil {
		err = fmt.Errorf("the netns of %s has just gone", c.what())
	}
	return ns, err
}

// attached finds the records that are meant, one of each living namespace.
func (c *ibdev2netdev) attached() ([]*ledger.Record, error) {
	if !ledger.Exists(c.stateDir) {
		return nil, nil
	}
	l, err := ledger.Open(c.stateDir)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	records, errs := l.List()
	var found []*ledger.Record
	for _, r := range records {
		meant := r.Pod.String() == c.pod
		if c.container != "" {
			meant = strings.HasPrefix(r.ContainerID, c.container)
		}
		known := slices.ContainsFunc(found, func(other *ledger.Record) bool { return other.Netns.Equal(r.Netns.NetnsID) })
		if meant && !known && l.OfThisBoot(r) && link.NetnsExists(r.Netns.NetnsID, r.Netns.Path) {
			found = append(found, r)
		}
	}
	if len(found) == 0 {
		return nil, errors.Join(errs...) // one that cannot be read may be the one
	}
	return found, nil
}

// pair is a port of an RDMA device, and its interface.
type pair struct {
	device    string
	port      uint32
	netdev    string
	hasSignal bool
}

func (p pair) String() string {
	state := "Down"
	if p.hasSignal {
		state = "Up"
	}
	return fmt.Sprintf("%s port %d ==> %s (%s)", p.device, p.port, p.netdev, state)
}

// pairsIn lists what ibdev2netdev shows of a namespace, by device and port.
func pairsIn(ns *link.Netns) ([]pair, error) {
	core, err := rdma.Open(ns)
	if err != nil {
		return nil, err
	}
	defer core.Close()
	devices, err := core.Devices()
	if err != nil {
		return nil, err
	}
	links, err := ns.Links()
	if err != nil {
		return nil, err
	}
	var found []pair
	for _, d := range devices {
		ports, err := core.Ports(d)
		if errors.Is(err, rdma.ErrNotFound) {
			continue // it has left meanwhile
		}
		if err != nil {
			return nil, err
		}
		found = append(found, pairsOf(d, ports, links)...)
	}
	slices.SortFunc(found, func(a, b pair) int {
		return cmp.Or(byNumber(a.device, b.device), cmp.Compare(a.port, b.port), byNumber(a.netdev, b.netdev))
	})
	return found, nil
}

// pairsOf finds the interfaces of a device's ports. The kernel names that of an
// Ethernet port. An IPoIB interface lies on an InfiniBand port and is not the
// port's; it is told by the device below both, so only of a device with one
// port.
func pairsOf(d rdma.Device, ports []rdma.Port, links []*link.Link) []pair {
	var found []pair
	for _, p := range ports {
		for _, l := range links {
			named := p.Netdev != 0 && l.Index == p.Netdev
			ipoib := p.Netdev == 0 && len(ports) == 1 && p.LinkLayer == "InfiniBand" &&
				l.Encap == "infiniband" && l.Lower == 0 && l.ParentDev != "" && l.ParentDev == d.ParentDev
			if named || ipoib {
				found = append(found, pair{d.Name, p.Number, l.Name, l.HasCarrier()})
			}
		}
	}
	return found
}

// byNumber compares names so that mlx5_2 comes before mlx5_10.
func byNumber(a, b string) int {
	nameA, nameB := strings.TrimRight(a, "0123456789"), strings.TrimRight(b, "0123456789")
	if nameA != nameB {
		return cmp.Compare(a, b)
	}
	// What is no number, or too long for one, is 0.
	numberA, _ := strconv.ParseUint(a[len(nameA):], 10, 64)
	numberB, _ := strconv.ParseUint(b[len(nameB):], 10, 64)
	return cmp.Or(cmp.Compare(numberA, numberB), cmp.Compare(a, b))
}
