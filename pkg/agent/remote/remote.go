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

// The bounds of an answer.
const (
	// With the start of the program that asks the agent, which takes the kubelet and the runtime
	// seconds on a node whose cores are busy.
	answerTime = local.FactsTime + 10*time.Second
	maxAnswer  = 16 << 20 // bytes
)

// labels select the agents' pods in the chart and in the manifests.
const labels = "app.kubernetes.io/name=rail-cni,app.kubernetes.io/component=agent"

// Pod is a pod of rail-agent.
type Pod struct {
	Namespace, Name string
	Node            string // "" before the scheduler has chosen one
	Image           string
	Problem         string // why it cannot be asked: "its pod kube-system/rail-agent-x is Pending"

	container string
	stateDir  []string // the flag of the agent
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

// pod returns what is needed of the object.
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

// Pods returns the agents' pods of a namespace, one for each node, in the order of the nodes'
// names, and those without a node. None is an error. Do not ask pods of other namespaces: a
// user who may create pods there could invent facts of any node.
func Pods(ctx context.Context, client *kube.Client, namespace string) ([]Pod, error) {
	found := map[string]Pod{}
	_, err := client.List(ctx, kube.Resource{Version: "v1", Plural: "pods", Namespace: namespace}, kube.ListOptions{LabelSelector: labels}, func(item []byte) error {
		var o podObject
		if err := json.Unmarshal(item, &o); err != nil {
			return err
		}
		p := o.pod()
		key := cmp.Or(p.Node, "pod "+p.Name)
		// While the DaemonSet replaces a pod the node has two.
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
			Cure("install rail-agent, or name its namespace with --agent-namespace; if it is installed, railctl ready says why no pod runs")
	}
	return slices.SortedFunc(maps.Values(found), func(a, b Pod) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Name, b.Name)) }), nil
}

// Facts returns what "rail-agent facts" prints in the pod: a JSON document of package doctor, at
// most 16 MiB. It needs the right to create pods/exec, and takes at most 25 s.
func (p *Pod) Facts(ctx context.Context, client *kube.Client) ([]byte, error) {
	text := &bounded{}
	err := p.exec(ctx, client, append([]string{"/rail-agent", "facts"}, p.stateDir...), text, nil)
	return text.Bytes(), err
}

// Railctl runs "railctl" with the arguments in the pod, whose image also has railctl, and writes its output to out and
// errOut. The error for an exit code other than 0 wraps a [kube.ExitError]. It needs the right to create pods/exec, and
// takes at most 25 s.
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

// bounded is a buffer that takes maxAnswer bytes.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxAnswer {
		return 0, fmt.Errorf("its answer has more than %d bytes", maxAnswer)
	}
	return b.Buffer.Write(p)
}
