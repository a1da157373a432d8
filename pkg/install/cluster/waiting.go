package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/kube"
)

// waiting returns the last messages of the nodes that are not done, by node name.
func (u *Uninstaller) waiting(ctx context.Context) ([]string, error) {
	agents, err := u.unready(ctx)
	said, sayErr := u.lastEvents(ctx, agents)
	var lines []string
	for _, node := range slices.Sorted(maps.Keys(said)) {
		lines = append(lines, node+": "+said[node])
	}
	return lines, errors.Join(err, sayErr)
}

// unready returns the nodes whose agent is not done, with the creation of its pod (RFC 3339).
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

// lastEvents returns, for each node, the last Event with the reason why it is not
// done. Older ones than the agent's pod are of an earlier uninstallation; both
// times are the server's.
func (u *Uninstaller) lastEvents(ctx context.Context, nodes map[string]string) (map[string]string, error) {
	last, at := map[string]string{}, map[string]string{}
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
		if since, waits := nodes[node]; waits && event.Metadata.CreationTimestamp >= since && event.LastTimestamp >= at[node] {
			last[node], at[node] = event.Message, event.LastTimestamp
		}
		return nil
	})
	return last, err
}
