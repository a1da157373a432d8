package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/pkg/manifest"
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

func newGenerateNADs() *cobra.Command {
	var g manifest.Networks
	cmd := &cobra.Command{
		Use:   "nads --rails RAILS --range RANGE",
		Short: "Print a network for each rail, and how a pod asks for them",
		Long: `Print a NetworkAttachmentDefinition for each rail. Pipe the output to "kubectl
apply -f -". Each network selects its NIC by the key "rail", so one network serves
all nodes. The node file of each node must contain the rails of the node's NICs
("railctl rails discover").

RANGE is a range for whereabouts. In the range and in the gateway, {rail} stands
for the number of the rail. The ranges of two rails must not overlap.

With --resource, each network has the annotation k8s.v1.cni.cncf.io/resourceName.
Then Multus passes the device that the kubelet has allocated to the network's
plugin. For host-device, RESOURCE must be a pool with the mode perRail, and the
annotation is RESOURCE_rail_N. For macvlan, which shares the NIC, RESOURCE must be
a pool with the mode shared, and the annotation is RESOURCE. Without --resource,
the kubelet does not know that a NIC is lent, and the pod gets no RDMA char
devices.

With --one, the command prints only one NetworkAttachmentDefinition for all rails.
An interface then gets the rail of the NIC that the kubelet has allocated ("rail":
"auto"). The pod names the network once for each rail, RESOURCE must be a pool with
the mode exclusive, and the pod requests one device for each rail. With
--same-host, the addresses of all interfaces of a pod have the same host part. Each
node then takes addresses in blocks of 16 ("block_size").

The command also prints the lines that a pod needs: as a comment, or with --pod as
an example pod. It reads nothing from the node or the cluster.`,
		Example: `  railctl generate nads --rails 0-7 --range '172.31.{rail}.0/24' --resource rdma/roce | kubectl apply -f -
  railctl generate nads --rails 0,4 --range '10.{rail}.0.0/16' --gateway '10.{rail}.0.1' --pod
  railctl generate nads --rails 0-7 --range '10.{rail}.0.0/16' --resource rdma/roce --one --same-host --pod
  railctl generate nads --rails 2 --range 192.168.111.0/24 --type macvlan --resource rdma/hca_shared`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&g.Rails, "rails", "", `rails, such as "0-7" or "0,2,4-6"`)
	flags.StringVar(&g.Range, "range", "", `range of each rail's addresses, such as "172.31.{rail}.0/24"`)
	flags.StringVar(&g.Gateway, "gateway", "", `address of each rail's gateway, such as "172.31.{rail}.1"; no pod gets this address`)
	flags.StringVar(&g.Resource, "resource", "", "name of a pool of the device plugin, such as rdma/roce")
	flags.StringVar(&g.Name, "name", "rail-net", "name of the networks; -N is added for rail N")
	flags.StringVarP(&g.Namespace, "namespace", "n", "", "namespace of the networks and the pod")
	flags.StringVar(&g.Type, "type", manifest.HostDevice, "plugin: host-device or macvlan")
	flags.IntVar(&g.MTU, "mtu", 0, "MTU in the pod; 0 keeps the NIC's MTU")
	flags.StringVar(&g.RDMA, "rdma", "", `key "rdma" of the networks: auto, required or off`)
	flags.BoolVar(&g.One, "one", false, "print one network for all rails; needs host-device and --resource")
	flags.BoolVar(&g.SameHost, "same-host", false, "give the interfaces of a pod the same host part on every rail; needs --one")
	flags.BoolVar(&g.Pod, "pod", false, "also print an example pod")
	for _, name := range []string{"rails", "range"} {
		_ = cmd.MarkFlagRequired(name) // an error is possible only if the flag does not exist
	}
	// An error is possible only if the flag does not exist.
	_ = cmd.RegisterFlagCompletionFunc("type", cobra.FixedCompletions([]string{manifest.HostDevice, manifest.Macvlan}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		text, err := g.YAML()
		if err != nil {
			return err
		}
		_, err = fmt.Fprint(cmd.OutOrStdout(), text)
		return err
	}
	return cmd
}
