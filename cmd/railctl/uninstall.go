package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/internal/cluster"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// What deployments/kustomize/base has.
const (
	agentName     = "rail-agent" // of the DaemonSet and its container
	ourLabel      = "app.kubernetes.io/name=rail-cni"
	uninstallFlag = "--uninstall"
	forceFlag     = "--force"
)

// uninstaller is "railctl uninstall" with its flags.
type uninstaller struct {
	kubeconfig, namespace  string
	nodesOnly, force, crds bool
	timeout                time.Duration

	client *kube.Client
	out    io.Writer
}

func newUninstall() *cobra.Command {
	u := &uninstaller{}
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Take rail-cni off all nodes of a cluster, then out of the cluster",
		Long: `Take rail-cni off all nodes of a cluster, then out of the cluster.

Each node's agent takes away the plugins, the kubeconfig and the flat file, and
puts back what was there before, byte for byte. It waits until no pod of its node
holds a NIC of ours: which ones do is said here, and by "kubectl describe node".
Other nodes do not wait for it. When all nodes are done the objects are deleted.

Run again it goes on where it stopped. Until then "railctl install" (or a helm
upgrade) brings the plugins back everywhere. Pools and their definitions stay,
and with them the addresses of pods on nodes that go on with real whereabouts.`,
		Example: `  railctl uninstall
  railctl uninstall --timeout 1h
  railctl uninstall --crds`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&u.kubeconfig, "kubeconfig", "", "kubeconfig of an administrator; else the first of $KUBECONFIG, else a pod's service account")
	flags.StringVar(&u.namespace, "namespace", "kube-system", "namespace of the DaemonSet")
	flags.DurationVar(&u.timeout, "timeout", 5*time.Minute, "how long to wait for the nodes")
	flags.BoolVar(&u.force, "force", false, "do not wait for pods: what they hold is brought home by nobody then")
	flags.BoolVar(&u.nodesOnly, "nodes-only", false, "take it off the nodes, and leave the objects (helm's hook does this)")
	flags.BoolVar(&u.crds, "crds", false, "delete whereabouts' CustomResourceDefinitions too, and with them all pools")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		u.out = cmd.OutOrStdout()
		var err error
		u.client, err = kube.Open(kube.Config{Kubeconfig: cluster.Kubeconfig(u.kubeconfig), UserAgent: "railctl/" + version})
		if err != nil {
			return err
		}
		ctx := cmd.Context()
		if ctx == nil {
			ctx = context.Background()
		}
		return u.run(ctx)
	}
	return cmd
}

// daemonSet is what is looked at of one.
type daemonSet struct {
	Metadata struct {
		Generation  int64
		Labels      map[string]string
		Annotations map[string]string
	}
	Spec struct {
		Template struct {
			Spec struct {
				Containers []struct {
					Name string
					Args []string
				}
			}
		}
	}
	Status struct {
		ObservedGeneration                                          int64
		DesiredNumberScheduled, UpdatedNumberScheduled, NumberReady int
	}
}

// done says whether every node's agent is one that uninstalls, and has done so.
func (d *daemonSet) done() bool {
	s := d.Status
	return s.ObservedGeneration >= d.Metadata.Generation && s.UpdatedNumberScheduled == s.DesiredNumberScheduled && s.NumberReady == s.DesiredNumberScheduled
}

func (u *uninstaller) daemonSets() kube.Resource {
	return kube.Resource{Group: "apps", Version: "v1", Plural: "daemonsets", Namespace: u.namespace}
}

func (u *uninstaller) get(ctx context.Context) (*daemonSet, error) {
	text, err := u.client.Get(ctx, u.daemonSets(), agentName)
	if err != nil {
		return nil, err
	}
	d := &daemonSet{}
	return d, json.Unmarshal(text, d)
}

func (u *uninstaller) run(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, u.timeout)
	defer cancel()
	d, err := u.get(bounded)
	switch {
	case kube.NotFound(err):
		if err := u.elsewhere(bounded); err != nil {
			return err
		}
		fmt.Fprintf(u.out, "no DaemonSet %s in the namespace %s: the nodes are left as they are\n", agentName, u.namespace)
	case err != nil:
		return err
	default:
		if release := d.Metadata.Annotations["meta.helm.sh/release-name"]; release != "" && !u.nodesOnly {
			return fmt.Errorf("helm has installed it: helm uninstall %s --namespace %s", release, d.Metadata.Annotations["meta.helm.sh/release-namespace"])
		}
		if err := u.tell(bounded, d); err != nil {
			return err
		}
		if err := u.wait(bounded); err != nil {
			return err
		}
	}
	if u.nodesOnly {
		return nil
	}
	ctx, cancel = context.WithTimeout(ctx, time.Minute) // what is left is a matter of seconds
	defer cancel()
	return u.delete(ctx)
}

// elsewhere gives an error when the agents are in another namespace: to delete
// them would leave their nodes as they are for good.
func (u *uninstaller) elsewhere(ctx context.Context) error {
	if u.nodesOnly { // nothing is deleted, and helm's hook may not look
		return nil
	}
	all := u.daemonSets()
	all.Namespace = ""
	var found error
	_, err := u.client.List(ctx, all, kube.ListOptions{LabelSelector: ourLabel, MetadataOnly: true}, func(item []byte) error {
		var o struct{ Metadata kube.Meta }
		err := json.Unmarshal(item, &o)
		found = fmt.Errorf("the DaemonSet %s is not in the namespace %s, but in %s: add --namespace %s",
			agentName, u.namespace, o.Metadata.Namespace, o.Metadata.Namespace)
		return err
	})
	return errors.Join(found, err)
}

// tell has the DaemonSet's agents uninstall, on all nodes at the same time: one
// that waits for its pods must not keep others from it.
func (u *uninstaller) tell(ctx context.Context, d *daemonSet) error {
	i := slices.IndexFunc(d.Spec.Template.Spec.Containers, func(c struct {
		Name string
		Args []string
	},
	) bool {
		return c.Name == agentName
	})
	if i < 0 {
		return fmt.Errorf("the DaemonSet %s/%s has no container %s, so it is not that of deployments/: name the namespace of that by --namespace", u.namespace, agentName, agentName)
	}
	at := fmt.Sprintf("/spec/template/spec/containers/%d/", i)
	ops := []kube.PatchOp{{Op: "test", Path: at + "name", Value: agentName}}
	args := d.Spec.Template.Spec.Containers[i].Args
	for flag, wanted := range map[string]bool{uninstallFlag: true, forceFlag: u.force} {
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
	_, err := u.client.Patch(ctx, u.daemonSets(), agentName, ops)
	return err
}

// wait waits until all nodes are done, and says which are not and why.
func (u *uninstaller) wait(ctx context.Context) error {
	const lookAgain = time.Second
	said, last := "", &daemonSet{}
	for ctx.Err() == nil {
		d, err := u.get(ctx)
		var waiting []string
		if err == nil {
			if last = d; d.done() {
				fmt.Fprintf(u.out, "uninstalled on %d of %d nodes\n", d.Status.NumberReady, d.Status.DesiredNumberScheduled)
				return nil
			}
			waiting, err = u.waiting(ctx)
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		if text := strings.Join(waiting, "\n"); text != said && text != "" {
			fmt.Fprintln(u.out, text)
			said = text
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookAgain):
		}
	}
	return fmt.Errorf("%d of %d nodes are not done after %v; end the pods, or see what they wait for by \"kubectl describe node\", and run it again",
		max(1, last.Status.DesiredNumberScheduled-last.Status.NumberReady), last.Status.DesiredNumberScheduled, u.timeout)
}

// waiting gives what the nodes say that are not done, in the order of their
// names.
func (u *uninstaller) waiting(ctx context.Context) ([]string, error) {
	var errs []error
	agents := map[string]bool{} // nodes
	_, err := u.client.List(ctx, kube.Resource{Version: "v1", Plural: "pods", Namespace: u.namespace}, kube.ListOptions{LabelSelector: ourLabel + ",app.kubernetes.io/component=agent"}, func(item []byte) error {
		var pod struct {
			Metadata struct{ DeletionTimestamp string }
			Spec     struct{ NodeName string }
			Status   struct {
				Conditions []struct{ Type, Status string }
			}
		}
		if err := json.Unmarshal(item, &pod); err != nil {
			return err
		}
		ready := slices.Contains(pod.Status.Conditions, struct{ Type, Status string }{"Ready", "True"})
		if !ready && pod.Metadata.DeletionTimestamp == "" && pod.Spec.NodeName != "" {
			agents[pod.Spec.NodeName] = true
		}
		return nil
	})
	errs = append(errs, err)
	type told struct{ at, message string }
	last := map[string]told{}
	_, err = u.client.List(ctx, kube.Resource{Version: "v1", Plural: "events", Namespace: "default"}, kube.ListOptions{FieldSelector: "reason=NotUninstalled"}, func(item []byte) error {
		var event struct {
			Message, LastTimestamp string
			InvolvedObject         struct{ Name string }
		}
		if err := json.Unmarshal(item, &event); err != nil {
			return err
		}
		node := event.InvolvedObject.Name
		if agents[node] && event.LastTimestamp >= last[node].at {
			last[node] = told{event.LastTimestamp, event.Message}
		}
		return nil
	})
	errs = append(errs, err)
	var lines []string
	for _, node := range slices.Sorted(maps.Keys(last)) {
		lines = append(lines, node+": "+last[node].message)
	}
	return lines, errors.Join(errs...)
}

// delete deletes what the manifests have made, the DaemonSet first.
func (u *uninstaller) delete(ctx context.Context) error {
	const rbac = "rbac.authorization.k8s.io"
	deleted := 0
	for _, r := range []kube.Resource{
		{Group: "apps", Version: "v1", Plural: "daemonsets"},
		{Group: "apps", Version: "v1", Plural: "deployments"},
		{Group: "coordination.k8s.io", Version: "v1", Plural: "leases"},
		{Group: rbac, Version: "v1", Plural: "rolebindings"},
		{Group: rbac, Version: "v1", Plural: "roles"},
		{Group: rbac, Version: "v1", Plural: "clusterrolebindings"},
		{Group: rbac, Version: "v1", Plural: "clusterroles"},
		{Version: "v1", Plural: "serviceaccounts"},
	} {
		var found []kube.Meta
		if _, err := u.client.List(ctx, r, kube.ListOptions{LabelSelector: ourLabel, MetadataOnly: true}, func(item []byte) error {
			var o struct{ Metadata kube.Meta }
			err := json.Unmarshal(item, &o)
			found = append(found, o.Metadata)
			return err
		}); err != nil {
			return err
		}
		for _, m := range found {
			of := r
			of.Namespace = m.Namespace
			if err := u.client.Delete(ctx, of, m.Name, kube.Preconditions{UID: m.UID}); err != nil && !kube.NotFound(err) {
				return err
			}
			deleted++
		}
	}
	fmt.Fprintf(u.out, "deleted %d objects\n", deleted)
	if !u.crds {
		fmt.Fprintln(u.out, "the CustomResourceDefinitions, and the pools, stay")
		return nil
	}
	for _, name := range definitionsOfPools {
		err := u.client.Delete(ctx, kube.Resource{Group: "apiextensions.k8s.io", Version: "v1", Plural: "customresourcedefinitions"}, name+".whereabouts.cni.cncf.io", kube.Preconditions{})
		if err != nil && !kube.NotFound(err) {
			return err
		}
	}
	fmt.Fprintln(u.out, "deleted whereabouts' CustomResourceDefinitions and all pools")
	return nil
}
