package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/deployments/crds"
	"github.com/rail-cni/rail-cni/deployments/kustomize/base"
)

func newInstall() *cobra.Command {
	var manifest, definitions bool
	var image, prefix string
	cmd := &cobra.Command{
		Use:   "install --manifest",
		Short: "Print what installs rail-cni in a cluster",
		Long: `Print the objects that install rail-cni in a cluster, for "kubectl apply -f -":
a DaemonSet in kube-system that installs the plugins on each node and keeps them,
and the roles under which agent and plugins work. Without further flags they are
those of deployments/kustomize/base; for another namespace, node selectors and
all else there is the chart, deployments/helm/rail-cni.

--prefix rail- installs the plugins as rail-host-device, rail-macvlan, … beside
those of others. "railctl uninstall" undoes it.`,
		Example: `  railctl install --manifest --crds | kubectl apply -f -
  railctl install --manifest --image registry.example/rail-cni:v1 | kubectl apply -f -`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.BoolVar(&manifest, "manifest", false, "print the objects; nothing is applied")
	flags.BoolVar(&definitions, "crds", false, "also the CustomResourceDefinitions of whereabouts, for a cluster without them")
	flags.StringVar(&image, "image", "", "image of rail-cni, with its tag")
	flags.StringVar(&prefix, "prefix", "", "prefix of the installed plugins' names")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !manifest {
			return errors.New("install only prints: add --manifest, and give what it prints to kubectl apply -f -")
		}
		objects, err := objects(image, prefix, definitions)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.Join(objects, "\n---\n"))
		return err
	}
	return cmd
}

// definitionsOfPools are the files of whereabouts' CustomResourceDefinitions.
var definitionsOfPools = []string{"ippools", "nodeslicepools", "overlappingrangeipreservations"}

// objects gives the objects' YAML, in the order in which they are to be made.
func objects(image, prefix string, definitions bool) ([]string, error) {
	var all []string
	if definitions {
		for _, name := range definitionsOfPools {
			text, err := crds.Files.ReadFile(name + ".yaml")
			if err != nil {
				return nil, err
			}
			all = append(all, strings.TrimSpace(string(text)))
		}
	}
	if regexp.MustCompile(`\s`).MatchString(image) {
		return nil, fmt.Errorf("--image %q: an image's name has no blanks", image)
	}
	if !regexp.MustCompile(`^([a-zA-Z0-9][a-zA-Z0-9_.-]*)?$`).MatchString(prefix) {
		return nil, fmt.Errorf("--prefix %q cannot begin the name of a program", prefix)
	}
	for _, text := range base.Objects() {
		all = append(all, string(text))
	}
	for _, set := range []struct {
		at, value string
		lines     int // the DaemonSet and the Deployment have an image
	}{{"image: ", image, 2}, {"- --prefix=", prefix, 1}} {
		if set.value == "" {
			continue
		}
		line := regexp.MustCompile(`(?m)^( +` + set.at + `).*$`)
		found := 0
		for i, text := range all {
			found += len(line.FindAllString(text, -1))
			all[i] = line.ReplaceAllStringFunc(text, func(old string) string { return line.FindStringSubmatch(old)[1] + set.value })
		}
		if found != set.lines {
			return nil, fmt.Errorf("the manifest has %d lines with %q", found, set.at)
		}
	}
	return all, nil
}
