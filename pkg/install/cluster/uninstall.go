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

// Names and values in deployments/kustomize/base.
const (
	agentName     = "rail-agent" // of the container, and of the DaemonSet unless the nodes are in pools
	ourLabel      = "app.kubernetes.io/name=rail-cni"
	agentLabel    = ourLabel + ",app.kubernetes.io/component=agent"
	uninstallFlag = "--uninstall"
	forceFlag     = "--force"
)

const (
	pollPause  = time.Second // between checks of the nodes
	deleteTime = time.Minute // limit for the deletion of the objects
)

// Uninstaller uninstalls rail-cni from all nodes of a cluster, then from the cluster.
type Uninstaller struct {
	Client    *kube.Client
	Namespace string        // of the DaemonSets
	Agents    []string      // names of the DaemonSets; if empty all of the namespace, or with NodesOnly rail-agent
	Timeout   time.Duration // limit for the wait for the nodes

	Force       bool // do not wait for pods that need the plugins
	NodesOnly   bool // leave the objects
	Definitions bool // delete whereabouts' CustomResourceDefinitions too

	Report func(line string) // reports the steps, and the reasons of a wait
}

type container struct {
	Name string
	Args []string
}

// daemonSet is the part of a DaemonSet that matters here.
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

// done reports whether every node's agent has been told to uninstall, and is done.
func (d *daemonSet) done() bool {
	s := d.Status
	return s.ObservedGeneration >= d.Metadata.Generation && s.UpdatedNumberScheduled == s.DesiredNumberScheduled && s.NumberReady == s.DesiredNumberScheduled
}

func (u *Uninstaller) daemonSets() kube.Resource {
	return kube.Resource{Group: "apps", Version: "v1", Plural: "daemonsets", Namespace: u.Namespace}
}

// find returns the agents' DaemonSets that exist.
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
	for _, name := range names { // helm's hook may get these, and list none
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

// Run uninstalls. It may be interrupted and run again.
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
		u.Report(fmt.Sprintf("no DaemonSet %s in the namespace %s, nodes not changed", agentName, u.Namespace))
	}
	for _, d := range agents {
		if release := d.Metadata.Annotations["meta.helm.sh/release-name"]; release != "" && !u.NodesOnly {
			return fmt.Errorf("helm has installed it: helm uninstall %s --namespace %s", release, d.Metadata.Annotations["meta.helm.sh/release-namespace"])
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

// elsewhere returns an error if the agents are in another namespace: without
// them their nodes would keep the plugins for good.
func (u *Uninstaller) elsewhere(ctx context.Context) error {
	if u.NodesOnly { // nothing is deleted, and helm's hook may not read other namespaces
		return nil
	}
	all := u.daemonSets()
	all.Namespace = ""
	var found error
	_, err := u.Client.List(ctx, all, kube.ListOptions{LabelSelector: ourLabel, MetadataOnly: true}, func(item []byte) error {
		var o struct{ Metadata kube.Meta }
		err := json.Unmarshal(item, &o)
		found = fmt.Errorf("the DaemonSet %s is not in the namespace %s, but in %s: add --namespace %s",
			o.Metadata.Name, u.Namespace, o.Metadata.Namespace, o.Metadata.Namespace)
		return err
	})
	return errors.Join(found, err)
}

// startUninstall makes the DaemonSet's agents uninstall, on all nodes at the same time: a node
// that waits for its pods must not delay the others.
func (u *Uninstaller) startUninstall(ctx context.Context, d *daemonSet) error {
	i := slices.IndexFunc(d.Spec.Template.Spec.Containers, func(c container) bool { return c.Name == agentName })
	if i < 0 {
		return fmt.Errorf("the DaemonSet %s/%s has no container %s, so it is not rail-cni's; name the right namespace with --namespace", u.Namespace, d.Metadata.Name, agentName)
	}
	at := fmt.Sprintf("/spec/template/spec/containers/%d/", i)
	ops := []kube.PatchOp{{Op: "test", Path: at + "name", Value: agentName}}
	args := d.Spec.Template.Spec.Containers[i].Args
	for flag, wanted := range map[string]bool{uninstallFlag: true, forceFlag: u.Force} {
		if wanted && !slices.Contains(args, flag) {
			ops = append(ops, kube.PatchOp{Op: "add", Path: at + "args/-", Value: flag})
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

// wait waits until all nodes are done. It reports the remaining nodes, and the
// reasons, whenever they change.
func (u *Uninstaller) wait(ctx context.Context) error {
	said, left, nodes := "", 1, 1
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
		if text := strings.Join(waiting, "\n"); text != said && text != "" {
			u.Report(text)
			said = text
		}
		_ = wait.For(ctx, pollPause) // the loop checks ctx
	}
	return fmt.Errorf("%d of %d nodes are not done after %v; end the pods, or see what they wait for with \"kubectl describe node\", and run it again",
		max(1, left), nodes, u.Timeout)
}
