package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/pkg/attach"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// attachment is one line of "railctl show".
type attachment struct {
	Pod         string       `json:"pod,omitempty"` // namespace/name
	ContainerID string       `json:"containerID"`
	IfName      string       `json:"ifname"`
	Plugin      string       `json:"plugin"`
	Network     string       `json:"network"`
	NIC         string       `json:"nic"` // its name on the host; a macvlan's master
	PCI         string       `json:"pci,omitempty"`
	Driver      string       `json:"driver,omitempty"` // the userspace driver that holds the NIC
	MAC         string       `json:"mac,omitempty"`
	MTU         int          `json:"mtu,omitempty"`
	Addresses   []string     `json:"addresses"`
	RDMA        *rdmaPart    `json:"rdma,omitempty"`
	Created     time.Time    `json:"created"`
	Phase       ledger.Phase `json:"phase"`
	State       string       `json:"state"` // of the pod netns: alive or gone
	PodNetns    string       `json:"podNetns"`
	HostNetns   string       `json:"hostNetns"`
}

// The states of a pod netns.
const (
	alive = "alive"
	gone  = "gone"
)

func newShow(stateDir *string) *cobra.Command {
	var s shown
	cmd := &cobra.Command{
		Use:   "show",
		Short: "List the attachments of this node, and the NICs lent to them",
		Long: `List the attachments of this node: which pod has which NIC, or which macvlan
on a NIC, under which name and with which addresses.

PHASE is how far the attachment is: lending (ADD works on it, or was killed),
lent, returning (DEL works on it, or was killed), freeing (the NIC is home, but
the IPAM plugin could not free the addresses yet). STATE is whether the pod's
network namespace still exists; what is gone, the next ADD or "railctl gc" ends.

If an attachment has RDMA, RDMA is the device and port, PORT STATE is read from
the kernel now, and GID is the index (of RoCE v2) that the interface's address
has in the port's table: what ib_write_bw -x and NCCL_IB_GID_INDEX want. With
--wide the table also has the char device, the GIDs' values, and the RDMA mode.
What cannot be read is "?", with the reason on stderr.

A NIC belongs to the network namespace it was lent from, the host netns. Those
of other host netns than railctl's own (nested runtimes) are listed with --all.

A NIC that did not come home as it was is named on stderr, with what changed.

A record, an RDMA device or a node file (/etc/rail-cni/node.yaml) that cannot be
read is named on stderr, the others are shown, and the exit code is 1.`,
		Example: `  railctl show
  railctl show -o json | jq -r '.[] | select(.state == "gone") | .nic'
  railctl show -o json | jq -r '.[] | .rdma.devices[]?.gids[]? | "\(.address) \(.index)"'
  railctl show --all -o yaml`,
		Args: cobra.NoArgs,
	}
	s.format = addOutputFlag(cmd)
	cmd.Flags().BoolVarP(&s.all, "all", "A", false, "also those of other host network namespaces")
	cmd.Flags().BoolVarP(&s.wide, "wide", "w", false, "more of RDMA in the table")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s.stateDir = *stateDir
		return s.run(cmd)
	}
	return cmd
}

// shown is one run of "railctl show".
type shown struct {
	format   *format
	all      bool
	wide     bool
	stateDir string
}

func (s *shown) run(cmd *cobra.Command) error {
	if err := requireRoot(); err != nil {
		return err
	}
	list := []attachment{}
	if !ledger.Exists(s.stateDir) {
		if *s.format == asTable {
			fmt.Fprintf(cmd.OutOrStdout(), "no attachments: there is no ledger at %s, so no plugin has used it since the node booted\n", s.stateDir)
			return nil
		}
		return s.format.print(cmd.OutOrStdout(), list, nil)
	}
	n, err := attach.Open(s.stateDir)
	if err != nil {
		return err
	}
	defer n.Close()
	records, errs := n.Ledger.List()
	if _, err := netconf.ReadNodeFile(netconf.NodeFilePath()); err != nil {
		errs = append(errs, fmt.Errorf("no NIC is lent now: %w", err))
	}
	now := live{host: n.Host.Netns}
	defer now.close()
	others := 0
	for _, r := range records {
		if !s.all && !ofThisHost(n, r) {
			others++
			continue
		}
		a := describe(r, netnsState(n, r))
		if a.RDMA != nil && a.State == alive && r.Phase != ledger.Freeing {
			errs = append(errs, now.fill(a.RDMA, r)...)
		}
		list = append(list, a)
	}
	if err := s.print(cmd, list); err != nil {
		return err
	}
	if others > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "railctl: %d attachment(s) of other host network namespaces not shown; --all shows them\n", others)
	}
	return reportErrors(cmd.ErrOrStderr(), append(errs, tellReturned(cmd, n)...))
}

// tellReturned prints the NICs that did not come home as they were.
func tellReturned(cmd *cobra.Command, n *attach.Node) []error {
	changed, errs := n.Ledger.Returned()
	for _, r := range changed {
		fmt.Fprintf(cmd.ErrOrStderr(), "railctl: %s is home, but not as it was, since %s (%s):\n", r.NIC, r.Time.Format(time.RFC3339), r.Holder)
		for _, c := range r.Changed {
			fmt.Fprintf(cmd.ErrOrStderr(), "  %s\n", c)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "  (correct it, then remove %s)\n", r.File)
	}
	return errs
}

// ofThisHost says whether the attachment belongs to the host netns that
// railctl runs in. Of an earlier boot nobody can tell, so it does.
func ofThisHost(n *attach.Node, r *ledger.Record) bool {
	return r.HostNetns.Equal(n.Host.Netns.ID) || !n.Ledger.OfThisBoot(r)
}

func netnsState(n *attach.Node, r *ledger.Record) string {
	if n.Ledger.OfThisBoot(r) && link.NetnsExists(r.Netns.NetnsID, r.Netns.Path) {
		return alive
	}
	return gone
}

func describe(r *ledger.Record, state string) attachment {
	a := attachment{
		Pod: r.Pod.String(), ContainerID: r.ContainerID, IfName: r.IfName,
		Plugin: r.Plugin, Network: r.Network, NIC: r.NICName(), MAC: r.MAC, MTU: r.MTU,
		Addresses: []string{}, RDMA: describeRDMA(r.RDMA), Created: r.Created, Phase: r.Phase, State: state,
		PodNetns: r.Netns.Path, HostNetns: r.HostNetns.NetnsID.String(),
	}
	a.Addresses = append(a.Addresses, r.Addresses...)
	if r.Loan != nil {
		a.PCI, a.Driver = r.Loan.PCI, r.Loan.Driver
	}
	return a
}

// who names the pod, or the container where the runtime named no pod, as a
// table has room for.
func (a *attachment) who() string {
	if a.Pod != "" {
		return a.Pod
	}
	const room = 28
	if len(a.ContainerID) > room {
		return a.ContainerID[:12] + "…"
	}
	return a.ContainerID
}

func (s *shown) print(cmd *cobra.Command, list []attachment) error {
	if len(list) == 0 && *s.format == asTable {
		fmt.Fprintln(cmd.OutOrStdout(), "no attachments")
		return nil
	}
	hasRDMA := slices.ContainsFunc(list, func(a attachment) bool { return a.RDMA != nil })
	rows := [][]string{s.header(hasRDMA)}
	for i := range list {
		rows = append(rows, s.row(&list[i], hasRDMA))
	}
	return s.format.print(cmd.OutOrStdout(), list, rows)
}

func (s *shown) header(hasRDMA bool) []string {
	header := []string{"POD", "IFNAME", "PLUGIN", "NETWORK", "NIC", "PCI", "MTU", "ADDRESSES"}
	if hasRDMA {
		header = append(header, "RDMA", "PORT STATE", "GID")
	}
	if hasRDMA && s.wide {
		header = append(header, "GID VALUE", "UVERBS", "MODE")
	}
	header = append(header, "AGE", "PHASE", "STATE")
	if s.all {
		header = append(header, "HOST NETNS")
	}
	return header
}

func (s *shown) row(a *attachment, hasRDMA bool) []string {
	mtu := ""
	if a.MTU != 0 {
		mtu = strconv.Itoa(a.MTU)
	}
	row := []string{a.who(), a.IfName, a.Plugin, a.Network, a.NIC, a.PCI, mtu, strings.Join(a.Addresses, ",")}
	if hasRDMA {
		row = append(row, a.RDMA.cells(s.wide)...)
	}
	row = append(row, age(time.Since(a.Created)), string(a.Phase), a.State)
	if s.all {
		row = append(row, a.HostNetns)
	}
	return row
}
