package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/integration/gpuplugin"
)

// scenesOf returns the scenes with these names, all if there are none.
func scenesOf(names string) (chosen []scene, err error) {
	if names == "" {
		return scenes, nil
	}
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(scenes, func(sc scene) bool { return sc.id == name })
		if i < 0 {
			return nil, fmt.Errorf("-scenes: %q is not one of %s", name, sceneNames())
		}
		chosen = append(chosen, scenes[i])
	}
	return chosen, nil
}

func sceneNames() string {
	var names []string
	for _, sc := range scenes {
		names = append(names, sc.id)
	}
	return strings.Join(names, ", ")
}

// In the scene "allocated" a pod has its rails as users with a device plugin have them:
// either eight networks, each with a resource of its own (examples/rails-nads.yaml), or one
// network, whose resource has the NICs of all rails (examples/rail-nad.yaml).

const allRails = "bench.test/rails"

// resource returns the name of the resource of a rail's network.
func (s suite) resource(rail string) string {
	if s.one {
		return allRails
	}
	return "bench.test/" + rail
}

// offerRails makes what the scene "allocated" needs on the first node: PCI functions, rails in
// the node file, and a device plugin for each resource.
func (l *podLab) offerRails(ctx context.Context) error {
	n := l.Node(0)
	addresses, err := n.PCI(ctx)
	if err != nil {
		return err
	}
	file := "rails:\n"
	offered := map[string][]gpuplugin.GPU{}
	for i, rail := range clusterRails[:8] {
		file += fmt.Sprintf("- {id: %d, pci: %q}\n", i, addresses[i])
		device := gpuplugin.GPU{PCI: addresses[i], UUID: addresses[i], NUMA: -1}
		offered[ourSuite.resource(rail)] = []gpuplugin.GPU{device}
		offered[allRails] = append(offered[allRails], device)
	}
	if err := os.WriteFile(n.Path("/etc/rail-cni/node.yaml"), []byte(file), 0o644); err != nil {
		return err
	}
	for resource, devices := range offered {
		p, err := gpuplugin.Start(gpuplugin.Options{KubeletDir: n.Path("/var/lib/kubelet"), Resource: resource, GPUs: devices})
		if err != nil {
			return err
		}
		l.plugins = append(l.plugins, p)
	}
	for began := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		err := l.offers(ctx, n.Name, offered)
		if err == nil {
			return nil
		}
		if time.Since(began) > time.Minute {
			return err
		}
	}
}

// offers returns an error unless the API server knows all of the node's devices.
func (l *podLab) offers(ctx context.Context, node string, offered map[string][]gpuplugin.GPU) error {
	var object struct {
		Status struct{ Allocatable map[string]string }
	}
	code, answer, err := l.Admin().Get(ctx, "/api/v1/nodes/"+node)
	if err := errors.Join(answered(code, answer, err), json.Unmarshal(answer, &object)); err != nil {
		return err
	}
	for resource, devices := range offered {
		if have := object.Status.Allocatable[resource]; have != fmt.Sprint(len(devices)) {
			return fmt.Errorf("%s offers %q of %s, not %d", node, have, resource, len(devices))
		}
	}
	return nil
}
