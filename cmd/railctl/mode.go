package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/bootmode"
)

func newRDMA() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rdma",
		Short: "Show and set the RDMA mode: whether network namespaces share RDMA devices",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(newMode())
	return cmd
}

// modeRun is one run of "railctl rdma mode".
type modeRun struct {
	out, log    io.Writer
	boot        bootmode.Boot
	format      *cli.Format
	nowOnly     bool
	persistOnly bool
}

func newMode() *cobra.Command {
	var m modeRun
	modes := []string{string(rdma.Shared), string(rdma.Exclusive)}
	cmd := &cobra.Command{
		Use:   "mode [shared|exclusive]",
		Short: "Show the RDMA mode of this node, or set it now and at boot",
		Long: `Without an argument, show the RDMA mode of the running kernel and the mode with
which the node boots.

shared (the kernel's default): every network namespace sees and can open every RDMA
device. A NIC is lent without its RDMA device. The pod uses the RDMA device through
the NIC's address, which becomes a GID.

exclusive: an RDMA device is in one network namespace, and can be used only there.
host-device lends the RDMA device together with its NIC. Pods that share a NIC by
macvlan have no RDMA in this mode.

With an argument, set the mode for the next boot, in ` + bootmode.File + `,
and set it in the running kernel. The kernel changes its mode only while there is
no network namespace except the initial one. So on a node with pods you must
reboot. If the initramfs loads the RDMA core, it has its own copy of the file, so
rebuild the initramfs. The kernel argument ib_core.netns_mode=0 (exclusive) or 1
(shared) has the same effect as the file. If /etc is read-only, only the kernel
argument works, and the error says where to set it on this system.

In exclusive mode, k8s-rdma-shared-dev-plugin does not start. If that plugin serves
this node, the command prints a warning when it sets exclusive mode.

The exit code is 1 if one of the two settings could not be made. The other setting
is kept, and stdout names it.`,
		Example: `  railctl rdma mode
  railctl rdma mode exclusive --persist-only && reboot
  railctl rdma mode -o json | jq -r .mode`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cobra.MaximumNArgs(1)(cmd, args); err != nil {
				return err
			}
			if len(args) == 1 && !slices.Contains(modes, args[0]) {
				return fmt.Errorf("%q is not an RDMA mode: use shared or exclusive", args[0])
			}
			return nil
		},
		ValidArgs: modes,
	}
	m.format = cli.AddOutputFlag(cmd, "rdma mode")
	cmd.Flags().BoolVar(&m.nowOnly, "now-only", false, "set only the mode of the running kernel")
	cmd.Flags().BoolVar(&m.persistOnly, "persist-only", false, "set only the mode with which the node boots")
	cmd.Flags().StringVar(&m.boot.Root, "root", "/", "directory in which the node's root file system is mounted (for a debug pod)")
	cmd.MarkFlagsMutuallyExclusive("now-only", "persist-only")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		m.out, m.log = cmd.OutOrStdout(), cmd.ErrOrStderr()
		if err := cli.RequireRoot(); err != nil {
			return err
		}
		if len(args) == 0 {
			return m.show()
		}
		return cli.ReportErrors(cmd.ErrOrStderr(), m.set(rdma.Mode(args[0])))
	}
	return cmd
}

// modeShown is what "railctl rdma mode -o json" prints.
type modeShown struct {
	Mode     rdma.Mode  `json:"mode"` // the mode of the running kernel; empty if the kernel has no RDMA core
	AtBoot   rdma.Mode  `json:"atBoot"`
	BuiltIn  bool       `json:"builtIn"` // true if ib_core is built into the kernel
	Settings []whereSet `json:"settings"`
}

// whereSet is one place that sets the mode at boot.
type whereSet struct {
	Where string    `json:"where"`
	Value string    `json:"value"` // of netns_mode
	Mode  rdma.Mode `json:"mode"`
}

func (m *modeRun) show() error {
	now, err := bootmode.RunningMode()
	if err != nil && !errors.Is(err, rdma.ErrNoRDMA) {
		return err
	}
	noRDMA := err
	boot, err := m.boot.Read()
	if err != nil {
		return err
	}
	shown := modeShown{Mode: now, AtBoot: boot.Mode, BuiltIn: boot.BuiltIn, Settings: []whereSet{}}
	for _, s := range boot.Settings {
		shown.Settings = append(shown.Settings, whereSet{s.Where(), s.Value, s.Mode})
	}
	if *m.format != cli.Table {
		return m.format.Print(m.out, shown, nil)
	}
	if noRDMA != nil {
		fmt.Fprintf(m.out, "now:      %v\n", noRDMA)
	} else {
		fmt.Fprintf(m.out, "now:      %s: %s\n", now, meaning(now))
	}
	fmt.Fprintf(m.out, "at boot:  %s\n", atBoot(boot))
	if noRDMA == nil && boot.Mode != "" && boot.Mode != now {
		fmt.Fprintf(m.out, "The mode changes to %s with the next boot; \"railctl rdma mode %s\" keeps it.\n", boot.Mode, now)
	}
	return nil
}

// meaning returns a text that explains a mode.
func meaning(m rdma.Mode) string {
	if m == rdma.Exclusive {
		return "each RDMA device is in one network namespace; the device is lent with its NIC, and macvlan pods have no RDMA"
	}
	return "every network namespace can use every RDMA device; a NIC is lent without its device, and the pod uses the device by its GIDs"
}

// atBoot returns a text that explains the mode at boot.
func atBoot(boot bootmode.State) string {
	n := len(boot.Settings)
	if n == 0 && boot.BuiltIn {
		return "shared, the kernel's default (ib_core is built in: only the kernel's command line can change it)"
	}
	if n == 0 {
		return "shared, the kernel's default: nothing in modprobe.d or on the kernel's command line says otherwise"
	}
	last := boot.Settings[n-1]
	text := fmt.Sprintf("%s, by %s (netns_mode=%s)", boot.Mode, last.Where(), last.Value)
	if boot.Mode == "" {
		text = "ib_core will not load: netns_mode is 0 (exclusive) or 1 (shared)"
		n++ // list all settings, including the last
	}
	for _, s := range boot.Settings[:n-1] {
		text += fmt.Sprintf("\n          %s says netns_mode=%s", s.Where(), s.Value)
		if boot.Mode != "" {
			text += ", which does not count"
		}
	}
	return text
}

// set sets the mode, and prints to stdout what it has done. It returns an error for each setting
// that it could not make.
func (m *modeRun) set(mode rdma.Mode) []error {
	c := m.boot.Change(mode, !m.nowOnly, !m.persistOnly)
	if mode == rdma.Exclusive {
		m.warnOfSharedPlugin()
	}
	var errs []error
	switch {
	case c.AtBoot:
		m.printBootMode(mode, c.Written)
	case c.AtBootErr != nil:
		errs = append(errs, c.AtBootErr)
	}
	switch {
	case c.Now:
		fmt.Fprintf(m.out, "The mode is %s now.\n", mode)
	case c.NotLoaded:
		fmt.Fprintln(m.out, "The RDMA core (module ib_core) is not loaded. It will have this mode when it is loaded.")
	case c.NowErr != nil:
		errs = append(errs, notNow(c.NowErr, mode, c.AtBoot))
	}
	return errs
}

// warnOfSharedPlugin prints a warning if k8s-rdma-shared-dev-plugin serves the node, because pods
// that ask for its resources do not start in exclusive mode.
func (m *modeRun) warnOfSharedPlugin() {
	found, err := inventory.SharedDevicePlugin(m.boot.Root)
	if err != nil {
		fmt.Fprintf(m.log, "warning: cannot find out whether k8s-rdma-shared-dev-plugin serves this node: %v\n", err)
	}
	if len(found) > 0 {
		fmt.Fprintf(m.log, "warning: k8s-rdma-shared-dev-plugin serves this node (%s), and does not start in exclusive mode: pods that ask for its resources stay Pending. Use the device plugin of rail-agent instead, or sriov-network-device-plugin with isRdma.\n",
			strings.Join(found, ", "))
	}
}

// printBootMode prints that the node boots with the mode, and the steps that the user still has to
// do.
func (m *modeRun) printBootMode(mode rdma.Mode, written bool) {
	argument := m.boot.ByArgument(mode)
	switch {
	case !written:
		fmt.Fprintf(m.out, "At boot the mode is %s, by the kernel's command line.\n", mode)
		return
	case m.boot.Volatile():
		fmt.Fprintf(m.out, "%s is written, but its directory is in memory: a reboot removes the file. To keep the mode, %s.\n", bootmode.File, argument)
		return
	}
	fmt.Fprintf(m.out, "%s is written: the mode is %s from the next boot on.\n", bootmode.File, mode)
	if m.boot.Immutable() {
		fmt.Fprintf(m.out, "If the initramfs of this system's image loads the RDMA core, the file comes too late: %s.\n", argument)
		return
	}
	if command := m.boot.RebuildInitramfs(); command != "" {
		fmt.Fprintf(m.out, "Now run %q: if the initramfs loads the RDMA core, it uses its own copy of the file.\n", command)
	} else {
		fmt.Fprintln(m.out, "If this node boots with an initramfs that loads the RDMA core, rebuild it, because it uses its own copy of the file.")
	}
	fmt.Fprintf(m.out, "The kernel argument %s has the same effect, without a file and an initramfs.\n", rdma.Argument(mode))
}

// notNow returns an error with the reason why the running kernel keeps its mode, and with the cure.
func notNow(err error, mode rdma.Mode, persisted bool) error {
	if !errors.Is(err, rdma.ErrOtherNetns) {
		return err
	}
	cure := fmt.Sprintf("set it for the next boot (railctl rdma mode %s --persist-only) and reboot", mode)
	if persisted {
		cure = "reboot"
	}
	return fmt.Errorf("the mode is not %s yet: %w (every pod has a network namespace, and services may; see lsns -t net); %s", mode, rdma.ErrOtherNetns, cure)
}
