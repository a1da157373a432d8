// Package base holds the manifests that install rail-cni in a cluster: the
// output of the chart in deployments/helm/rail-cni with its defaults. kustomize
// uses them, "railctl install" prints them, and tests run under exactly these
// roles. It imports nothing of ours.
//
// They are generated: change the chart, then run the package's test with -update.
package base

import (
	"bytes"
	"embed"
	"fmt"
)

// Files holds the manifests: YAML, several objects in each file.
//
//go:embed admission.yaml agent.yaml plugin.yaml reconciler.yaml daemonset.yaml
var Files embed.FS

// names is the order in which the objects are created.
var names = []string{"plugin.yaml", "agent.yaml", "reconciler.yaml", "admission.yaml", "daemonset.yaml"}

// Objects returns each object's YAML, in the order in which they are created.
func Objects() [][]byte {
	var all [][]byte
	for _, name := range names {
		text, err := Files.ReadFile(name)
		if err != nil {
			panic(fmt.Sprintf("%s is embedded: %v", name, err))
		}
		all = append(all, bytes.Split(bytes.TrimSpace(text), []byte("\n---\n"))...)
	}
	return all
}
