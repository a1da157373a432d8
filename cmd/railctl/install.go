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
		Long: `Print the objects that install rail-cni in a cluster, for "kubectl apply -f -": a
DaemonSet in kube-system that installs the plugins on each node and keeps them
there, and the roles under which agent and plugins work. Without further flags the
objects are those of deployments/kustomize/base. For another namespace, node
selectors and other settings, use the chart, deployments/helm/rail-cni.

--prefix rail- installs the plugins as rail-host-device, rail-macvlan, …, in
addition to other plugins. "railctl uninstall" removes rail-cni.`,
		Example: `  railctl install --manifest --crds | kubectl apply -f -
  railctl install --manifest --image registry.example/rail-cni:v1 | kubectl apply -f -`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.BoolVar(&print, "manifest", false, "print the objects; nothing is applied")
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
