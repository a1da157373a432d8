package pods

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/agent/remote"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// Agents are the pods of rail-agent in a cluster.
type Agents struct {
	client *kube.Client
	pods   []remote.Pod // one for each node
}

// FindAgents lists the pods of rail-agent in a namespace. It returns an error if there are none.
func FindAgents(ctx context.Context, client *kube.Client, namespace string) (*Agents, error) {
	pods, err := remote.Pods(ctx, client, namespace)
	if err != nil {
		return nil, err
	}
	pods = slices.DeleteFunc(pods, func(p remote.Pod) bool { return p.Node == "" || p.Image == "" })
	if len(pods) == 0 {
		return nil, errors.New("no pod of rail-agent is on a node; see the events of its DaemonSet")
	}
	slices.SortFunc(pods, func(x, y remote.Pod) int { return naturally(x.Node, y.Node) })
	return &Agents{client, pods}, nil
}

// Nodes returns the names of the nodes that have an agent.
func (a *Agents) Nodes() (names []string) {
	for i := range a.pods {
		names = append(names, a.pods[i].Node)
	}
	return names
}

// Image returns the image of the node's agent. If the node has no agent, it returns the image of
// another agent.
func (a *Agents) Image(node string) string {
	i := slices.IndexFunc(a.pods, func(p remote.Pod) bool { return p.Node == node })
	return a.pods[max(i, 0)].Image
}

// Fabric asks the agents of the nodes, one after another, for the key "fabric" of the node file. It
// returns the first answer, which is "" if the node file has no such key. Fabric needs the right to
// create pods/exec.
func (a *Agents) Fabric(ctx context.Context) (string, error) {
	const tries = 3
	var errs []error
	for i := range a.pods {
		if a.pods[i].Problem != "" {
			continue // a pod that does not run cannot be asked
		}
		fabric, err := a.fabric(ctx, &a.pods[i])
		if err == nil || ctx.Err() != nil {
			return fabric, err
		}
		if errs = append(errs, err); kube.IsForbidden(err) || len(errs) == tries {
			break
		}
	}
	return "", cmp.Or(errors.Join(errs...), errors.New("no pod of rail-agent runs"))
}

// fabric returns the fabric in the node file of a node, which it takes from the node's facts. It
// returns "" if the node file has no fabric.
func (a *Agents) fabric(ctx context.Context, p *remote.Pod) (string, error) {
	facts, err := a.facts(ctx, p)
	if err != nil {
		return "", err
	}
	if facts.Configs == nil || !facts.Configs.Files.OK() {
		return "", fmt.Errorf("the agent of %s could not read its node file", p.Node)
	}
	for _, c := range facts.Configs.Files.Value {
		if c.Kind == fact.NodeFile {
			file, err := nodefile.Parse([]byte(c.Text))
			if err != nil {
				return "", fmt.Errorf("the node file of %s: %w", p.Node, err)
			}
			return file.Fabric, nil
		}
	}
	return "", nil
}

// facts returns the facts that "rail-agent facts" prints in the pod.
func (a *Agents) facts(ctx context.Context, p *remote.Pod) (*fact.Facts, error) {
	text, err := p.Facts(ctx, a.client)
	if err != nil {
		return nil, err
	}
	return fact.Decode(bytes.NewReader(text))
}

// attachments returns the attachments in the ledger of a node. It needs the right to create
// pods/exec.
func (a *Agents) attachments(ctx context.Context, node string) ([]fact.Attachment, error) {
	i := slices.IndexFunc(a.pods, func(p remote.Pod) bool { return p.Node == node })
	if i < 0 {
		return nil, errors.New("the node has no rail-agent")
	}
	facts, err := a.facts(ctx, &a.pods[i])
	if err != nil {
		return nil, err
	}
	if facts.Ledger == nil || !facts.Ledger.Attachments.OK() {
		return nil, errors.New("the agent could not read its ledger")
	}
	return facts.Ledger.Attachments.Value, nil
}

// Select returns the names of the nodes whose labels match the selector.
func Select(ctx context.Context, client *kube.Client, selector string) ([]string, error) {
	var names []string
	_, err := client.List(ctx, kube.Resource{Version: "v1", Plural: "nodes"}, kube.ListOptions{LabelSelector: selector, MetadataOnly: true}, func(item []byte) error {
		var n struct {
			Metadata kube.Meta `json:"metadata"`
		}
		if err := json.Unmarshal(item, &n); err != nil {
			return err
		}
		names = append(names, n.Metadata.Name)
		return nil
	})
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("no node has the labels %s", strings.TrimSpace(selector))
	}
	slices.SortFunc(names, naturally)
	return names, err
}

func podsIn(namespace string) kube.Resource {
	return kube.Resource{Version: "v1", Plural: "pods", Namespace: namespace}
}
