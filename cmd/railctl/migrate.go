package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/migrate/deviceplugin"
)

func newMigrate(stateDir *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Convert the configuration of other device plugins",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(newMigrateDevices(stateDir))
	return cmd
}

// kubeletDir is a directory that exists only on a node.
const kubeletDir = "/var/lib/kubelet"

func newMigrateDevices(stateDir *string) *cobra.Command {
	var file, key string
	cmd := &cobra.Command{
		Use:   "devices [-f FILE]",
		Short: "Print another device plugin's configuration as resources of the node file",
		Long: `Read the configuration of k8s-rdma-shared-dev-plugin (ConfigMap rdma-devices) or of
sriov-network-device-plugin. The input is the manifest of the ConfigMap or only the
JSON in it. Print the key "resources" of the node file with the same resources and
selectors, and the steps to switch over. The command recognizes the plugin by the
key configList or resourceList.

If a resource has a key that rail-cni does not support, nothing is printed, and the
error names the resource and the key. If you run the command as root on a node, it
also tries the selectors on all NICs of the node, including lent NICs. If a
selector matches no NIC, it prints a warning on stderr. The command changes
nothing.`,
		Example: `  kubectl -n kube-system get configmap rdma-devices -o yaml | railctl migrate devices
  railctl migrate devices -f config.json`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "-", `file with the ConfigMap or the JSON, "-" for stdin`)
	cmd.Flags().StringVar(&key, "key", "", "key of the ConfigMap; needed if several keys have a configuration")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		text, err := cli.ReadInput(cmd.InOrStdin(), file)
		if err != nil {
			return err
		}
		found, err := deviceplugin.Find(text, key)
		if err != nil {
			return err
		}
		if err := found.Write(cmd.OutOrStdout()); err != nil {
			return err
		}
		warnings := found.Warnings()
		if _, err := os.Stat(kubeletDir); err == nil && os.Geteuid() == 0 {
			list, err := inventory.NICs(*stateDir)
			if err != nil {
				return err
			}
			warnings = found.Problems(list.Resource())
		}
		for _, w := range warnings {
			cli.Note(cmd.ErrOrStderr(), "warning: %s", w.Message)
		}
		return nil
	}
	return cmd
}
