package remote

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/agent/local"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// These are the limits of an answer.
const (
	// This includes the time to start the program that asks the agent. On a node whose cores are
	// busy, the kubelet and the runtime need seconds for that.
	answerTime = local.FactsTime + 10*time.Second
	maxAnswer  = 16 << 20 // in bytes
)

// labels select the agents' pods in the chart and in the manifests.
const labels = "app.kubernetes.io/name=rail-cni,app.kubernetes.io/component=agent"

// Pod is a pod of rail-agent.
type Pod struct {
	Namespace, Name string
	Node            string // "" before the scheduler has chosen one
	Image           string
	Problem         string // the reason why the pod cannot be asked, for example "its pod kube-system/rail-agent-x is Pending"

	container string
	stateDir  []string // the agent's flag --state-dir
}

type podObject struct {
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
		Phase   string `json:"phase"`
		Reason  string `json:"reason"`
		Message string `json:"message"`
	} `json:"status"`
}

// pod returns the pod that the object describes.
func (o *podObject) pod() Pod {
	p := Pod{Namespace: o.Metadata.Namespace, Name: o.Metadata.Name, Node: o.Spec.NodeName}
	if o.Status.Phase != "Running" || len(o.Spec.Containers) == 0 {
		p.Problem = strings.TrimSpace(fmt.Sprintf("its pod %s/%s is %s %s", p.Namespace, p.Name, o.Status.Phase, strings.TrimSpace(o.Status.Reason+" "+o.Status.Message)))
	}
	if len(o.Spec.Containers) == 0 {
		return p
	}
	c := &o.Spec.Containers[0]
	p.container, p.Image = c.Name, c.Image
	for i, arg := range c.Args { // the agent's socket is in this directory
		if arg == "--state-dir" && i+1 < len(c.Args) {
			p.stateDir = []string{arg, c.Args[i+1]}
			break
		}
		if strings.HasPrefix(arg, "--state-dir=") {
			p.stateDir = []string{arg}
			break
		}
	}
	return p
}

// Pods returns the agents' pods in a namespace. It returns one pod for each node, sorted by the
// names of the nodes, and also the pods that have no node yet. If there are no pods, it returns an
// error. Pods in other namespaces must not be asked, because a user who may create pods there could
// invent facts about any node.
func Pods(ctx context.Context, client *kube.Client, namespace string) ([]Pod, error) {
	found := map[string]Pod{}
	_, err := client.List(ctx, kube.Resource{Version: "v1", Plural: "pods", Namespace: namespace}, kube.ListOptions{LabelSelector: labels}, func(item []byte) error {
		var o podObject
		if err := json.Unmarshal(item, &o); err != nil {
			return err
		}
		p := o.pod()
		key := cmp.Or(p.Node, "pod "+p.Name)
		// While the DaemonSet replaces a pod, the node has two pods.
		if had, ok := found[key]; !ok || had.Problem != "" {
			found[key] = p
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("the pods of rail-agent: %w", err)
	}
	if len(found) == 0 {
		return nil, failure.New(failure.NotAvailable, "no pods with the labels %s in the namespace %s", labels, namespace).
			Cure("install rail-agent, or name its namespace with --agent-namespace; if rail-agent is installed, run railctl ready to see why no pod runs")
	}
	return slices.SortedFunc(maps.Values(found), func(a, b Pod) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Name, b.Name)) }), nil
}

// Facts returns the output of "rail-agent facts" in the pod. This is a JSON document of package
// doctor with at most 16 MiB. Facts needs the right to create pods/exec, and takes at most 25 s.
func (p *Pod) Facts(ctx context.Context, client *kube.Client) ([]byte, error) {
	text := &bounded{}
	err := p.exec(ctx, client, append([]string{"/rail-agent", "facts"}, p.stateDir...), text, nil)
	return text.Bytes(), err
}

// Railctl runs "railctl" with these arguments in the pod, whose image also contains railctl. It writes the output to
// out and errOut. If the exit code is not 0, the error wraps a [kube.ExitError]. Railctl needs the right to create
// pods/exec, and takes at most 25 s.
func (p *Pod) Railctl(ctx context.Context, client *kube.Client, args []string, out, errOut io.Writer) error {
	return p.exec(ctx, client, slices.Concat([]string{"/railctl"}, p.stateDir, args), out, errOut)
}

// exec runs a program in the pod. errOut may be nil.
func (p *Pod) exec(ctx context.Context, client *kube.Client, command []string, out, errOut io.Writer) error {
	if p.Problem != "" {
		return fmt.Errorf("%s", p.Problem)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, answerTime, fmt.Errorf("no answer within %v", answerTime))
	defer cancel()
	return client.ExecTo(ctx, p.Namespace, p.Name, p.container, command, out, errOut)
}

// bounded is a buffer that takes at most maxAnswer bytes.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxAnswer {
		return 0, fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	return b.Buffer.Write(p)
}
