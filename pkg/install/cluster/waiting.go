package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/kube"
)

// waiting returns the last message of each node that is not done, sorted by the names of the nodes.
func (u *Uninstaller) waiting(ctx context.Context) ([]string, error) {
	agents, err := u.unready(ctx)
	events, sayErr := u.lastEvents(ctx, agents)
	var lines []string
	for _, node := range slices.Sorted(maps.Keys(events)) {
		lines = append(lines, node+": "+events[node])
	}
	return lines, errors.Join(err, sayErr)
}

// unready returns the nodes whose agent is not done. The values are the times when the pods of
// these agents were created (RFC 3339).
func (u *Uninstaller) unready(ctx context.Context) (map[string]string, error) {
	nodes := map[string]string{}
	pods := kube.Resource{Version: "v1", Plural: "pods", Namespace: u.Namespace}
	_, err := u.Client.List(ctx, pods, kube.ListOptions{LabelSelector: agentLabel}, func(item []byte) error {
		type condition struct{ Type, Status string }
		var pod struct {
			Metadata struct{ CreationTimestamp, DeletionTimestamp string }
			Spec     struct{ NodeName string }
			Status   struct{ Conditions []condition }
		}
		if err := json.Unmarshal(item, &pod); err != nil {
			return err
		}
		ready := slices.Contains(pod.Status.Conditions, condition{"Ready", "True"})
		if !ready && pod.Metadata.DeletionTimestamp == "" && pod.Spec.NodeName != "" {
			nodes[pod.Spec.NodeName] = pod.Metadata.CreationTimestamp
		}
		return nil
	})
	return nodes, err
}

// lastEvents returns, for each node, the message of the last Event that says why the node is not
// done. Events that are older than the agent's pod belong to an earlier uninstallation and are
// ignored. Both times come from the server, so they can be compared.
func (u *Uninstaller) lastEvents(ctx context.Context, nodes map[string]string) (map[string]string, error) {
	last, times := map[string]string{}, map[string]string{}
	events := kube.Resource{Version: "v1", Plural: "events", Namespace: "default"}
	_, err := u.Client.List(ctx, events, kube.ListOptions{FieldSelector: "reason=NotUninstalled"}, func(item []byte) error {
		var event struct {
			Metadata               struct{ CreationTimestamp string }
			Message, LastTimestamp string
			InvolvedObject         struct{ Name string }
		}
		if err := json.Unmarshal(item, &event); err != nil {
			return err
		}
		node := event.InvolvedObject.Name
		if since, waits := nodes[node]; waits && event.Metadata.CreationTimestamp >= since && event.LastTimestamp >= times[node] {
			last[node], times[node] = event.Message, event.LastTimestamp
		}
		return nil
	})
	return last, err
}
