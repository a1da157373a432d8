package reconcile

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/rail-cni/rail-cni/pkg/kube"
)

// DefaultNodeGrace is the default of the programs for NodeGrace in [Options].
const DefaultNodeGrace = 10 * time.Minute

// nodesPerPage bounds the size of one answer: a node has some 20 kB.
const nodesPerPage = 100

// nodes is what a running reconciler knows of the cluster's nodes. A node that lost its
// connection goes on running its pods, although the cluster may have deleted them: by
// force, or together with the Node. An entry does not name the node of its pod. So one such
// node is a reason to wait longer before the address of any pod that is gone is freed.
type nodes struct {
	grace time.Duration
	known map[string]bool // the Nodes of the last scan; nil before the first
	// NodeGrace applies until this time. why is the reason.
	until time.Time
	why   string
}

// mayRunBecause looks at the Nodes, and returns the reason why a pod that is gone may
// still be running, or "".
func (n *nodes) mayRunBecause(ctx context.Context, client *kube.Client) string {
	found, notReady := map[string]bool{}, ""
	err := eachNode(ctx, client, func(n clusterNode) {
		if found[n.name] = true; !n.ready && (notReady == "" || n.name < notReady) {
			notReady = n.name
		}
	})
	if err != nil {
		return fmt.Sprintf("the nodes are unknown: %v", err)
	}
	now := time.Now()
	n.note(found, notReady, now)
	if now.Before(n.until) {
		return n.why
	}
	return ""
}

// note compares found with the Nodes of the last scan. notReady is the name of a node in
// found that is not ready, or "". NodeGrace applies for a time after the node is ready
// again, because the node needs some time to end its pods.
func (n *nodes) note(found map[string]bool, notReady string, now time.Time) {
	if n.known == nil {
		n.until, n.why = now.Add(n.grace), "this reconciler has just begun, and does not know which nodes were removed before"
	}
	for name := range n.known {
		if !found[name] {
			n.until, n.why = now.Add(n.grace), fmt.Sprintf("node %s was removed", name)
		}
	}
	if notReady != "" {
		n.until, n.why = now.Add(n.grace), fmt.Sprintf("node %s was not ready", notReady)
	}
	n.known = found
}

// clusterNode is the relevant part of a Node.
type clusterNode struct {
	name  string
	ready bool
	boot  string // the boot ID that its kubelet has reported, "" if none
}

// eachNode calls do with each Node of the cluster.
func eachNode(ctx context.Context, client *kube.Client, do func(clusterNode)) error {
	_, err := client.List(ctx, kube.Resource{Version: "v1", Plural: "nodes"}, kube.ListOptions{Limit: nodesPerPage}, func(item []byte) error {
		n, err := parseNode(item)
		if err == nil {
			do(n)
		}
		return err
	})
	return err
}

func parseNode(data []byte) (clusterNode, error) {
	var o struct {
		Metadata kube.Meta `json:"metadata"`
		Status   struct {
			Conditions []struct{ Type, Status string } `json:"conditions"`
			NodeInfo   struct{ BootID string }         `json:"nodeInfo"`
		} `json:"status"`
	}
	if err := json.Unmarshal(data, &o); err != nil {
		return clusterNode{}, err
	}
	n := clusterNode{name: o.Metadata.Name, boot: o.Status.NodeInfo.BootID}
	for _, c := range o.Status.Conditions {
		n.ready = n.ready || c.Type == "Ready" && c.Status == "True"
	}
	return n, nil
}

// mayRun reports whether a pod of this state may still run on a node that lost its
// connection. That is so if the pod is gone, or if the cluster ended it.
func mayRun(p *podState) bool { return p == nil || p.terminal != "" }
