package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/netdevs"
)

// ibdev2netdev is one run of "railctl ibdev2netdev".
type ibdev2netdev struct {
	stateDir string
	holder   inventory.Holder
	netns    string
	output   *cli.Format
}

func newIbdev2netdev(stateDir *string) *cobra.Command {
	var c ibdev2netdev
	cmd := &cobra.Command{
		Use:   "ibdev2netdev [--pod NAMESPACE/NAME | --container ID | --netns PATH]",
		Short: "Map RDMA devices to interfaces, on the host or in a pod",
		Long: `Print a line for each port of an RDMA device that has an interface in the network
namespace. The lines have the form of NVIDIA's script of the same name:

  mlx5_0 port 1 ==> net1 (Up)

Without a flag, it prints the host's ports. For a pod, the pod's image needs no
tools. "Up" means that the interface is up and has a carrier.

The command asks the kernel which interface belongs to which port, and does not
compare names. It prints a line only if the interface is in the network namespace.
In exclusive mode, the RDMA device must also be in this network namespace. An
InfiniBand port has one line for its interface and one line for each child of the
interface. A macvlan has no line, because the port belongs to the macvlan's master.
"railctl show" names the master.

The exit code is 1 if this kernel has no RDMA, or if something cannot be read. If
there is no line to print, the exit code is 0, and a message on stderr says that
there is none.`,
		Example: `  railctl ibdev2netdev
  railctl ibdev2netdev --pod default/gpu-rdma-pod-1
  railctl ibdev2netdev --netns /run/netns/x`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&c.holder.Pod, "pod", "", "a pod of this node, as NAMESPACE/NAME, that has an attachment")
	cmd.Flags().StringVar(&c.holder.Container, "container", "", "ID of a container that has an attachment, or the beginning of the ID")
	cmd.Flags().StringVar(&c.netns, "netns", "", "the path of a network namespace")
	cmd.MarkFlagsMutuallyExclusive("pod", "container", "netns")
	c.output = cli.AddOutputFlag(cmd, "ibdev2netdev")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c.stateDir = *stateDir
		return c.run(cmd)
	}
	return cmd
}

func (c *ibdev2netdev) run(cmd *cobra.Command) error {
	if err := cli.RequireRoot(); err != nil {
		return err
	}
	ns, err := c.openNetns()
	if err != nil {
		return err
	}
	defer ns.Close()
	pairs, err := netdevs.Pairs(ns)
	if errors.Is(err, rdma.ErrNoRDMA) {
		err = fmt.Errorf("%w; load the driver of the NICs (mlx5_ib, bnxt_re, irdma, …)", err)
	}
	if err != nil {
		return err
	}
	if len(pairs) == 0 {
		cli.Note(cmd.ErrOrStderr(), "no port of an RDMA device has an interface in %s", c.what())
	}
	if *c.output != cli.Table {
		shown := []pairShown{}
		for _, p := range pairs {
			shown = append(shown, pairShown{p.Device, p.Port, p.Netdev, p.HasSignal})
		}
		return c.output.Print(cmd.OutOrStdout(), shown, nil)
	}
	for _, p := range pairs {
		fmt.Fprintln(cmd.OutOrStdout(), pairLine(p))
	}
	return nil
}

// pairShown is one line of the output, in JSON.
type pairShown struct {
	Device string `json:"device"`
	Port   uint32 `json:"port"`
	Netdev string `json:"netdev"`
	Up     bool   `json:"up"`
}

// what returns a text that names the network namespace as the user did.
func (c *ibdev2netdev) what() string {
	switch {
	case c.holder != inventory.Holder{}:
		return c.holder.String()
	case c.netns != "":
		return "netns " + c.netns
	}
	return "the host netns"
}

// openNetns opens the network namespace that the user requested.
func (c *ibdev2netdev) openNetns() (*netns.Netns, error) {
	switch {
	case c.netns != "":
		return netns.Open(c.netns)
	case c.holder == inventory.Holder{}:
		return netns.Current()
	}
	return inventory.FindNetns(c.stateDir, c.holder)
}

// pairLine returns a line in the format of NVIDIA's script.
func pairLine(p netdevs.Pair) string {
	state := "Down"
	if p.HasSignal {
		state = "Up"
	}
	return fmt.Sprintf("%s port %d ==> %s (%s)", p.Device, p.Port, p.Netdev, state)
}
