package support

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/agent/remote"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// The bounds of what is read of a cluster.
const (
	atOnce   = 16
	listTime = 30 * time.Second
	logLines = 5000
	logBytes = 4 << 20
	fewer    = 8        // a log that is too long is asked for again with this fraction of the lines
	maxPrint = 16 << 20 // bytes that a program prints
)

// ours selects the objects of rail-cni.
const ours = "app.kubernetes.io/name=rail-cni"

// ClusterOptions say what of a cluster is read.
type ClusterOptions struct {
	Client    *kube.Client
	Namespace string        // of the pods of rail-agent and of the reconciler
	Nodes     []string      // those to read; none are all
	Since     time.Duration // how old logs and Events may be
}

// has reports whether what belongs to the node is read. The name "" stands for what belongs to none.
func (o *ClusterOptions) has(node string) bool {
	return len(o.Nodes) == 0 || node == "" || slices.Contains(o.Nodes, node)
}

// AddCluster adds what the API server and the agents' pods have: the logs of rail-cni's pods, its
// objects, the networks, the nodes, Events, and of each node what railctl prints there. Files
// that cannot be read are noted in the bundle.
func (b *Bundle) AddCluster(ctx context.Context, o ClusterOptions) {
	var all sync.WaitGroup
	for _, read := range []func(context.Context, *ClusterOptions){b.addPods, b.addObjects, b.addNodes, b.addEvents, b.addAgents} {
		all.Go(func() { read(ctx, &o) })
	}
	all.Wait()
}

// listed is a list of Kubernetes' objects.
type listed struct {
	Kind  string            `json:"kind"`
	Items []json.RawMessage `json:"items"`
}

// list returns the objects that keep accepts; nil accepts all.
func (o *ClusterOptions) list(ctx context.Context, r kube.Resource, by kube.ListOptions, keep func(item []byte) bool) (*listed, error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	l := &listed{Kind: "List", Items: []json.RawMessage{}}
	_, err := o.Client.List(ctx, r, by, func(item []byte) error {
		if keep == nil || keep(item) {
			l.Items = append(l.Items, slices.Clone(item))
		}
		return nil
	})
	return l, err
}

// addList adds the objects of a kind.
func (b *Bundle) addList(ctx context.Context, o *ClusterOptions, about string, r kube.Resource, by kube.ListOptions, keep func(item []byte) bool) *listed {
	path := "objects/" + r.Plural + ".json"
	l, err := o.list(ctx, r, by, keep)
	if err != nil {
		b.Missing(path, err)
	}
	if err == nil || len(l.Items) > 0 {
		b.AddJSON(path, about, l)
	}
	return l
}

// addObjects adds the objects that install rail-cni, and the networks.
func (b *Bundle) addObjects(ctx context.Context, o *ClusterOptions) {
	for _, plural := range []string{"daemonsets", "deployments"} {
		b.addList(ctx, o, "of rail-cni", kube.Resource{Group: "apps", Version: "v1", Plural: plural, Namespace: o.Namespace}, kube.ListOptions{LabelSelector: ours}, nil)
	}
	b.addList(ctx, o, "the NetworkAttachmentDefinitions of all namespaces",
		kube.Resource{Group: "k8s.cni.cncf.io", Version: "v1", Plural: "network-attachment-definitions"}, kube.ListOptions{}, nil)
}

// addNodes adds the nodes, with their labels, conditions, resources and versions.
func (b *Bundle) addNodes(ctx context.Context, o *ClusterOptions) {
	b.addList(ctx, o, "labels, conditions, resources, and versions of kernel, runtime and kubelet",
		kube.Resource{Version: "v1", Plural: "nodes"}, kube.ListOptions{}, func(item []byte) bool {
			var n struct {
				Metadata kube.Meta `json:"metadata"`
			}
			return json.Unmarshal(item, &n) == nil && o.has(n.Metadata.Name)
		})
}

// eventObject is what of an Event decides whether it is of interest.
type eventObject struct {
	Metadata  kube.Meta `json:"metadata"`
	Reason    string    `json:"reason"`
	Reporting string    `json:"reportingComponent"`
	Source    struct {
		Component string `json:"component"`
		Host      string `json:"host"`
	} `json:"source"`
	Object struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"involvedObject"`
	Last      time.Time `json:"lastTimestamp"`
	EventTime time.Time `json:"eventTime"`
}

// podReasons are those of the kubelet's Events about pods whose networks fail.
var podReasons = []string{"FailedCreatePodSandBox", "FailedKillPod", "SandboxChanged", "FailedMount"}

// of reports whether the Event is of rail-cni, of its pods, or about a pod's networks.
func (e *eventObject) of(o *ClusterOptions) bool {
	byUs := strings.HasPrefix(e.Source.Component, "rail-") || strings.HasPrefix(e.Reporting, "rail-")
	ofUs := e.Object.Namespace == o.Namespace && strings.HasPrefix(e.Object.Name, "rail-")
	last := e.Last
	if e.EventTime.After(last) {
		last = e.EventTime
	}
	young := o.Since <= 0 || last.IsZero() || time.Since(last) <= o.Since
	return young && o.has(e.Source.Host) && (byUs || ofUs || slices.Contains(podReasons, e.Reason))
}

func (b *Bundle) addEvents(ctx context.Context, o *ClusterOptions) {
	b.addList(ctx, o, "Events of rail-cni, of its pods, and of pods whose networks failed",
		kube.Resource{Version: "v1", Plural: "events"}, kube.ListOptions{}, func(item []byte) bool {
			var e eventObject
			return json.Unmarshal(item, &e) == nil && e.of(o)
		})
}

// podObject is a pod of rail-cni, for its logs.
type podObject struct {
	Metadata kube.Meta `json:"metadata"`
	Spec     struct {
		NodeName string `json:"nodeName"`
	} `json:"spec"`
	Status struct {
		Containers     []containerStatus `json:"containerStatuses"`
		InitContainers []containerStatus `json:"initContainerStatuses"`
	} `json:"status"`
}

type containerStatus struct {
	Name     string `json:"name"`
	Restarts int    `json:"restartCount"`
}

// addPods adds the pods of rail-cni, and their logs.
func (b *Bundle) addPods(ctx context.Context, o *ClusterOptions) {
	l := b.addList(ctx, o, "of rail-cni", kube.Resource{Version: "v1", Plural: "pods", Namespace: o.Namespace}, kube.ListOptions{LabelSelector: ours}, func(item []byte) bool {
		var p podObject
		return json.Unmarshal(item, &p) == nil && o.has(p.Spec.NodeName)
	})
	each(len(l.Items), func(i int) {
		var p podObject
		if err := json.Unmarshal(l.Items[i], &p); err != nil {
			b.Missing("logs", err)
			return
		}
		for _, c := range slices.Concat(p.Status.InitContainers, p.Status.Containers) {
			b.addLog(ctx, o, p.Metadata.Name, c.Name, false)
			if c.Restarts > 0 {
				b.addLog(ctx, o, p.Metadata.Name, c.Name, true)
			}
		}
	})
}

// addLog adds the log of a container.
func (b *Bundle) addLog(ctx context.Context, o *ClusterOptions, pod, container string, previous bool) {
	path, about := fmt.Sprintf("logs/%s_%s.log", pod, container), ""
	if previous {
		path, about = fmt.Sprintf("logs/%s_%s.previous.log", pod, container), "before its last restart"
	}
	var kept []byte // with its end cut off
	for lines, tooMany := logLines, 0; ; tooMany, lines = lines, lines/fewer {
		text, err := o.log(ctx, pod, container, kube.LogOptions{Since: o.Since, Lines: lines, Bytes: logBytes, Previous: previous})
		if err != nil && kept == nil {
			b.Missing(path, err)
			return
		}
		if err != nil {
			b.Missing(path, fmt.Errorf("its last %d lines have more than %d bytes, and their end is missing: %w", tooMany, logBytes, err))
			b.Add(path, about, kept)
			return
		}
		isWhole := len(text) < logBytes // else the API server has cut the newest
		if !isWhole && lines >= fewer {
			kept = text
			continue
		}
		switch {
		case !isWhole:
			b.Missing(path, fmt.Errorf("its last %d lines have more than %d bytes, and their end is missing", lines, logBytes))
		case tooMany > 0:
			b.Missing(path, fmt.Errorf("only its last %d lines are here: its last %d lines have more than %d bytes", lines, tooMany, logBytes))
		}
		b.Add(path, about, text)
		return
	}
}

// log returns the log of a container, if it is read within listTime.
func (o *ClusterOptions) log(ctx context.Context, pod, container string, of kube.LogOptions) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	return o.Client.Log(ctx, o.Namespace, pod, container, of)
}

// Printed has the output of railctl on each node.
var Printed = []struct {
	File, About string
	Args        []string
}{
	{"show.json", "the attachments in the node's ledger", []string{"show", "-o", "json"}},
	{"nics.json", "its NICs", []string{"nics", "-o", "json"}},
	{"version.json", "of railctl there", []string{"version", "-o", "json"}},
}

// addAgents adds what railctl prints in the agents' pods.
func (b *Bundle) addAgents(ctx context.Context, o *ClusterOptions) {
	lists, cancel := context.WithTimeout(ctx, listTime)
	pods, err := remote.Pods(lists, o.Client, o.Namespace)
	cancel()
	if err != nil {
		b.Missing("nodes", err)
		return
	}
	pods = slices.DeleteFunc(pods, func(p remote.Pod) bool { return p.Node == "" || !o.has(p.Node) })
	for _, name := range o.Nodes {
		if !slices.ContainsFunc(pods, func(p remote.Pod) bool { return p.Node == name }) {
			b.Missing("nodes/"+name, fmt.Errorf("there is no pod of rail-agent on it"))
		}
	}
	each(len(pods), func(i int) {
		for _, what := range Printed {
			path := "nodes/" + pods[i].Node + "/" + what.File
			var out, errOut bounded
			err := pods[i].Railctl(ctx, o.Client, what.Args, &out, &errOut)
			if err == nil || out.Len() > 0 { // a part of it, and the rest is in stderr
				if notJSON := b.AddText(path, what.About, out.Bytes()); err == nil {
					err = notJSON
				}
			}
			if err != nil {
				b.Missing(path, err)
			}
			if errOut.Len() > 0 {
				b.Add(strings.TrimSuffix(path, "json")+"stderr", "what railctl printed to stderr", errOut.Bytes())
			}
		}
	})
}

// each calls do for the numbers below n, some at a time.
func each(n int, do func(i int)) {
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			do(i)
		})
	}
	all.Wait()
}

// bounded is a buffer that takes maxPrint bytes.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxPrint {
		return 0, fmt.Errorf("it printed more than %d bytes", maxPrint)
	}
	return b.Buffer.Write(p)
}
