package pods

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// agentLabels select the agents' pods in the chart and in the manifests.
const agentLabels = "app.kubernetes.io/name=rail-cni,app.kubernetes.io/component=agent"

// Agents are the pods of rail-agent of a cluster.
type Agents struct {
	client *kube.Client
	pods   []agentPod // by node
}

type agentPod struct {
	Metadata kube.Meta `json:"metadata"`
	Spec     struct {
		NodeName   string `json:"nodeName"`
		Containers []struct {
			Name  string   `json:"name"`
			Image string   `json:"image"`
			Args  []string `json:"args"`
		} `json:"containers"`
	} `json:"spec"`
	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

// FindAgents lists the pods in a namespace. None is an error.
func FindAgents(ctx context.Context, client *kube.Client, namespace string) (*Agents, error) {
	a := &Agents{client: client}
	_, err := client.List(ctx, podsIn(namespace), kube.ListOptions{LabelSelector: agentLabels}, func(item []byte) error {
		var p agentPod
		if err := json.Unmarshal(item, &p); err != nil {
			return err
		}
		if p.Spec.NodeName != "" && len(p.Spec.Containers) > 0 {
			a.pods = append(a.pods, p)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("the pods of rail-agent: %w", err)
	}
	if len(a.pods) == 0 {
		return nil, failure.WithCure(fmt.Errorf("no pods with the labels %s in the namespace %s", agentLabels, namespace),
			"name the agents' namespace by --agent-namespace, or nodes and image by --nodes and --image")
	}
	slices.SortFunc(a.pods, func(x, y agentPod) int { return naturally(x.Spec.NodeName, y.Spec.NodeName) })
	return a, nil
}

// Nodes returns the names of the nodes that have an agent.
func (a *Agents) Nodes() (names []string) {
	for i := range a.pods {
		names = append(names, a.pods[i].Spec.NodeName)
	}
	return slices.Compact(names)
}

// Image returns the image of the node's agent, else that of another one.
func (a *Agents) Image(node string) string {
	i := slices.IndexFunc(a.pods, func(p agentPod) bool { return p.Spec.NodeName == node })
	return a.pods[max(i, 0)].Spec.Containers[0].Image
}

// factsTime bounds how long an agent may take for its facts.
const factsTime = 8 * time.Second

// Facts returns what "rail-agent facts" prints on the first node whose agent answers. It needs the
// right to create pods/exec.
func (a *Agents) Facts(ctx context.Context) ([]byte, error) {
	const tries = 3
	var errs []error
	for i := range a.pods {
		p := &a.pods[i]
		if p.Status.Phase != "Running" {
			continue
		}
		text, err := a.factsOf(ctx, p)
		if err == nil || ctx.Err() != nil {
			return text, err
		}
		if errs = append(errs, err); kube.IsForbidden(err) || len(errs) == tries {
			break
		}
	}
	if len(errs) == 0 {
		errs = append(errs, errors.New("no pod of rail-agent runs"))
	}
	return nil, errors.Join(errs...)
}

func (a *Agents) factsOf(ctx context.Context, p *agentPod) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, factsTime, fmt.Errorf("no facts within %s", factsTime))
	defer cancel()
	container, command, text := p.Spec.Containers[0], []string{"/rail-agent", "facts"}, &bounded{}
	for _, arg := range container.Args {
		if strings.HasPrefix(arg, "--state-dir=") { // where the agent's socket is
			command = append(command, arg)
			break
		}
	}
	err := a.client.Exec(ctx, p.Metadata.Namespace, p.Metadata.Name, container.Name, command, text)
	return text.Bytes(), err
}

// bounded is a buffer that takes 16 MiB.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	const most = 16 << 20
	if b.Len()+len(p) > most {
		return 0, fmt.Errorf("it printed more than %d bytes", most)
	}
	return b.Buffer.Write(p)
}

// Select returns the names of the nodes with the labels.
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
