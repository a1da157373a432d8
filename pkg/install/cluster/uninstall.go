package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// These are names and values from deployments/kustomize/base.
const (
	agentName     = "rail-agent" // the name of the container, and of the DaemonSet except if the nodes are in pools
	ourLabel      = "app.kubernetes.io/name=rail-cni"
	agentLabel    = ourLabel + ",app.kubernetes.io/component=agent"
	uninstallFlag = "--uninstall"
	forceFlag     = "--force"
)

const (
	pollPause  = time.Second // the time between two checks of the nodes
	deleteTime = time.Minute // the time limit for deleting the objects
)

// Uninstaller uninstalls rail-cni first from all nodes of a cluster, and then from the cluster
// itself.
type Uninstaller struct {
	Client    *kube.Client
	Namespace string        // the namespace of the DaemonSets
	Agents    []string      // names of the DaemonSets; if empty, all of the namespace, or with NodesOnly only rail-agent
	Timeout   time.Duration // how long to wait for the nodes

	Force       bool // do not wait for pods that need the plugins
	NodesOnly   bool // do not delete the objects
	Definitions bool // also delete whereabouts' CustomResourceDefinitions

	Report func(line string) // called with each line about a step, or about the reason why it waits
}

type container struct {
	Name string
	Args []string
}

// daemonSet has the fields of a DaemonSet that are needed here.
type daemonSet struct {
	Metadata struct {
		Name        string
		Generation  int64
		Labels      map[string]string
		Annotations map[string]string
	}
	Spec struct {
		Template struct {
			Spec struct {
				Containers []container
			}
		}
	}
	Status struct {
		ObservedGeneration                                          int64
		DesiredNumberScheduled, UpdatedNumberScheduled, NumberReady int
	}
}

// done reports whether the agents of all nodes have been told to uninstall and are done.
func (d *daemonSet) done() bool {
	s := d.Status
	return s.ObservedGeneration >= d.Metadata.Generation && s.UpdatedNumberScheduled == s.DesiredNumberScheduled && s.NumberReady == s.DesiredNumberScheduled
}

func (u *Uninstaller) daemonSets() kube.Resource {
	return kube.Resource{Group: "apps", Version: "v1", Plural: "daemonsets", Namespace: u.Namespace}
}

// find returns the existing DaemonSets of the agents.
func (u *Uninstaller) find(ctx context.Context) ([]*daemonSet, error) {
	var found []*daemonSet
	take := func(text []byte) error {
		d := &daemonSet{}
		found = append(found, d)
		return json.Unmarshal(text, d)
	}
	names := u.Agents
	if len(names) == 0 && u.NodesOnly {
		names = []string{agentName}
	}
	if len(names) == 0 {
		_, err := u.Client.List(ctx, u.daemonSets(), kube.ListOptions{LabelSelector: ourLabel}, take)
		return found, err
	}
	for _, name := range names { // helm's hook has the right to get these DaemonSets, but not to list DaemonSets
		text, err := u.Client.Get(ctx, u.daemonSets(), name)
		if kube.IsNotFound(err) {
			continue
		}
		if err == nil {
			err = take(text)
		}
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Run uninstalls rail-cni. It may be interrupted and run again.
func (u *Uninstaller) Run(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, u.Timeout)
	defer cancel()
	agents, err := u.find(bounded)
	if err != nil {
		return err
	}
	if len(agents) == 0 {
		if err := u.elsewhere(bounded); err != nil {
			return err
		}
		u.Report(fmt.Sprintf("there is no DaemonSet %s in the namespace %s, so no node was changed", agentName, u.Namespace))
	}
	for _, d := range agents {
		if release := d.Metadata.Annotations["meta.helm.sh/release-name"]; release != "" && !u.NodesOnly {
			return fmt.Errorf("helm has installed rail-cni; uninstall it with helm uninstall %s --namespace %s", release, d.Metadata.Annotations["meta.helm.sh/release-namespace"])
		}
	}
	for _, d := range agents {
		if err := u.startUninstall(bounded, d); err != nil {
			return err
		}
	}
	if len(agents) > 0 {
		if err := u.wait(bounded); err != nil {
			return err
		}
	}
	if u.NodesOnly {
		return nil
	}
	ctx, cancel = context.WithTimeout(ctx, deleteTime)
	defer cancel()
	return u.delete(ctx)
}

// elsewhere returns an error if agents are in another namespace. If Run went on and deleted the
// cluster's objects, the nodes of these agents would keep the plugins forever.
func (u *Uninstaller) elsewhere(ctx context.Context) error {
	if u.NodesOnly { // no objects are deleted, and helm's hook has no right to read other namespaces
		return nil
	}
	all := u.daemonSets()
	all.Namespace = ""
	var found error
	_, err := u.Client.List(ctx, all, kube.ListOptions{LabelSelector: ourLabel, MetadataOnly: true}, func(item []byte) error {
		var o struct{ Metadata kube.Meta }
		err := json.Unmarshal(item, &o)
		found = fmt.Errorf("the DaemonSet %s is not in the namespace %s, but in %s; name its namespace with --namespace %s",
			o.Metadata.Name, u.Namespace, o.Metadata.Namespace, o.Metadata.Namespace)
		return err
	})
	return errors.Join(found, err)
}

// startUninstall makes the agents of the DaemonSet uninstall. All nodes begin at the same time, so
// that a node that waits for its pods does not delay other nodes.
func (u *Uninstaller) startUninstall(ctx context.Context, d *daemonSet) error {
	i := slices.IndexFunc(d.Spec.Template.Spec.Containers, func(c container) bool { return c.Name == agentName })
	if i < 0 {
		return fmt.Errorf("the DaemonSet %s/%s has no container %s, so it is not rail-cni's; name the right namespace with --namespace", u.Namespace, d.Metadata.Name, agentName)
	}
	pointer := fmt.Sprintf("/spec/template/spec/containers/%d/", i)
	ops := []kube.PatchOp{{Op: "test", Path: pointer + "name", Value: agentName}}
	args := d.Spec.Template.Spec.Containers[i].Args
	for flag, wanted := range map[string]bool{uninstallFlag: true, forceFlag: u.Force} {
		if wanted && !slices.Contains(args, flag) {
			ops = append(ops, kube.PatchOp{Op: "add", Path: pointer + "args/-", Value: flag})
		}
	}
	if len(ops) == 1 {
		return nil
	}
	ops = append(ops, kube.PatchOp{Op: "add", Path: "/spec/updateStrategy", Value: map[string]any{
		"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxUnavailable": "100%"},
	}})
	_, err := u.Client.Patch(ctx, u.daemonSets(), d.Metadata.Name, ops)
	return err
}

// wait waits until all nodes are done. Whenever the remaining nodes or their reasons change, it
// reports them.
func (u *Uninstaller) wait(ctx context.Context) error {
	reported, left, nodes := "", 1, 1
	for ctx.Err() == nil {
		agents, err := u.find(ctx)
		var waiting []string
		if err == nil {
			done := true
			left, nodes = 0, 0
			for _, d := range agents {
				done = done && d.done()
				left += d.Status.DesiredNumberScheduled - d.Status.NumberReady
				nodes += d.Status.DesiredNumberScheduled
			}
			if done {
				u.Report(fmt.Sprintf("uninstalled on %d of %d nodes", nodes-left, nodes))
				return nil
			}
			waiting, err = u.waiting(ctx)
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		if text := strings.Join(waiting, "\n"); text != reported && text != "" {
			u.Report(text)
			reported = text
		}
		_ = wait.For(ctx, pollPause) // the loop checks ctx
	}
	return fmt.Errorf("%d of %d nodes are not done after %v; end the pods that hold NICs, and run the command again (\"kubectl describe node\" shows what a node waits for)",
		max(1, left), nodes, u.Timeout)
}
