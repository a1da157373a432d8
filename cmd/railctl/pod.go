package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/cell"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/publish"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
)

func newPod(stateDir *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pod NAMESPACE/NAME",
		Short: "Print the rail information published to a pod of this node",
		Long: `Print the current rails of a pod of this node. A rail is an interface that has a
NIC of the host or an RDMA device, or whose network needs the rail of the NIC. With
-o json, the output is the document that rail-agent writes to
/run/rail-cni/pods/UID/rails.json for the pod, but without the document's
generation.

GID is the index of the RoCE v2 GID of the first address that has such a GID. GPU
is the nearest GPU with its distance ("railctl nics --help" explains distances).

If something cannot be read, the command prints the error on stderr and the rest on
stdout, and the exit code is 1.`,
		Example: `  railctl pod default/trainer-0
  railctl pod default/trainer-0 -o json | jq -r '.rails[] | "\(.ifName) \(.rdma) \(.gidIndexV2)"'`,
		Args: cli.OneArg("a pod"),
	}
	format := cli.AddOutputFlag(cmd, "pod")
	named := cli.AddPodNamespace(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		rails, _, _, unread, err := railsOf(*stateDir, named(args[0]))
		if err != nil {
			return err
		}
		if err := format.Print(cmd.OutOrStdout(), rails, railRows(rails)); err != nil {
			return err
		}
		return cli.ReportErrors(cmd.ErrOrStderr(), unread)
	}
	return cmd
}

// railsOf returns the document about the rails of a pod, the settings of the node, and the facts
// about the machine. unread has an error for each fact that could not be read.
func railsOf(stateDir, name string) (rails *railinfo.Rails, s railinfo.Settings, m railinfo.Machine, unread []error, err error) {
	if err := cli.RequireRoot(); err != nil {
		return nil, s, m, nil, err
	}
	namespace, pod, ok := strings.Cut(name, "/")
	if !ok || namespace == "" || pod == "" || strings.Contains(pod, "/") {
		return nil, s, m, nil, fmt.Errorf("%s: write it as NAMESPACE/NAME, for example default/%s", name, strings.ReplaceAll(name, "/", "-"))
	}
	records, unread, err := recordsOf(stateDir, name)
	if err != nil {
		return nil, s, m, nil, err
	}
	if len(records) == 0 {
		return nil, s, m, nil, errors.Join(append(unread, fmt.Errorf("pod %s holds no rail on this node; \"railctl show\" lists the attachments", name))...)
	}
	list, err := inventory.NICs(stateDir)
	if err != nil {
		return nil, s, m, nil, err
	}
	ref := railinfo.PodRef{UID: records[0].Pod.UID, Namespace: namespace, Name: pod, Node: os.Getenv("NODE_NAME")}
	if ref.Node == "" {
		ref.Node, _ = os.Hostname()
	}
	rails, err = publish.Describe(list, records, ref)
	if rails == nil {
		return nil, s, m, nil, err
	}
	if err != nil {
		unread = append(unread, err)
	}
	return rails, railinfo.SettingsOf(list.File), railinfo.Machine{Tree: list.Tree, Root: "/"}, unread, nil
}

// recordsOf returns the records of the pod's rails. If an older container of the pod is still
// ending and has records as well, only the records of the newest container are returned.
func recordsOf(stateDir, pod string) ([]*ledger.Record, []error, error) {
	if !ledger.Exists(stateDir) {
		return nil, nil, nil
	}
	l, err := ledger.Open(stateDir)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	records, unread := l.HeldIf(ledger.Anywhere, func(r *ledger.Record) bool { return r.Pod.String() == pod })
	records = slices.DeleteFunc(records, func(r *ledger.Record) bool { return !publish.IsRail(r) })
	if len(records) > 0 {
		newest := records[len(records)-1].ContainerID
		records = slices.DeleteFunc(records, func(r *ledger.Record) bool { return r.ContainerID != newest })
	}
	return records, unread, nil
}

func railRows(r *railinfo.Rails) [][]string {
	rows := [][]string{{"RAIL", "IFNAME", "RDMA", "STATE", "SPEED", "MTU", "GID", "ADDRESSES", "GATEWAY", "PCI", "NUMA", "GPU"}}
	for i := range r.Rails {
		l := &r.Rails[i]
		rdma := l.RDMA
		if rdma != "" && l.Port != 0 {
			rdma = fmt.Sprintf("%s/%d", l.RDMA, l.Port)
		}
		mtu := mtuCell(l.MTU)
		if l.ActiveMTU != 0 {
			mtu += "/" + strconv.Itoa(l.ActiveMTU)
		}
		gpu := ""
		if len(l.GPUs) > 0 {
			gpu = l.GPUs[0].Level.String() + " " + l.GPUs[0].PCI
		}
		rows = append(rows, []string{
			cell.Number(l.Rail), cell.Printable(l.IfName), cell.Printable(rdma), l.State, cell.Speed(l.SpeedMbps), mtu, cell.Number(l.GIDIndexV2),
			strings.Join(l.Addresses, ","), l.Gateway, l.PCI, cell.Number(l.NUMA), gpu,
		})
	}
	return rows
}
