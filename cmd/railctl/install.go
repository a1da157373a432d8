package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/pkg/install/cluster"
)

func newInstall() *cobra.Command {
	var print bool
	var m cluster.Manifest
	cmd := &cobra.Command{
		Use:   "install --manifest",
		Short: "Print the objects that install rail-cni in a cluster",
		Long: `Print the objects that install rail-cni in a cluster. Pipe the output to "kubectl
apply -f -". The objects are a DaemonSet in kube-system, which installs the plugins
on each node and keeps them installed, and the roles of the agent and of the
plugins. Without further flags, the objects are the same as in
deployments/kustomize/base. If you need another namespace, a node selector or other
settings, use the chart in deployments/helm/rail-cni.

With --prefix rail-, the plugins are installed as rail-host-device, rail-macvlan,
…, so that they do not replace other plugins. "railctl uninstall" removes rail-cni.`,
		Example: `  railctl install --manifest --crds | kubectl apply -f -
  railctl install --manifest --image registry.example/rail-cni:v1 | kubectl apply -f -`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.BoolVar(&print, "manifest", false, "print the objects without applying them")
	flags.BoolVar(&m.Definitions, "crds", false, "also print the CustomResourceDefinitions of whereabouts, for a cluster without them")
	flags.StringVar(&m.Image, "image", "", "image of rail-cni, with its tag")
	flags.StringVar(&m.Prefix, "prefix", "", "prefix of the installed plugins' names")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !print {
			return errors.New("install only prints the manifest: add --manifest, and pipe the output to kubectl apply -f -")
		}
		objects, err := m.Objects()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.Join(objects, "\n---\n"))
		return err
	}
	return cmd
}
