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

// These limit what is read from a cluster.
const (
	atOnce   = 16
	listTime = 30 * time.Second
	logLines = 5000
	logBytes = 4 << 20
	fewer    = 8        // if a log is too long, it is requested again with the number of lines divided by this
	maxPrint = 16 << 20 // the maximum size of a program's output, in bytes
)

// ownLabel is the label selector for the objects of rail-cni.
const ownLabel = "app.kubernetes.io/name=rail-cni"

// ClusterOptions say which parts of a cluster are read.
type ClusterOptions struct {
	Client    *kube.Client
	Namespace string        // the namespace of the pods of rail-agent and of the reconciler
	Nodes     []string      // the nodes to read; if empty, all nodes
	Since     time.Duration // the maximum age of logs and Events
}

// has reports whether things that belong to the node are read. The name "" stands for things that
// belong to no node.
func (o *ClusterOptions) has(node string) bool {
	return len(o.Nodes) == 0 || node == "" || slices.Contains(o.Nodes, node)
}

// AddCluster adds files from the API server and from the agents' pods: the logs of rail-cni's pods,
// rail-cni's objects, the networks, the nodes, Events, and the output of railctl on each node. If a
// file cannot be read, this is noted in the bundle.
func (b *Bundle) AddCluster(ctx context.Context, o ClusterOptions) {
	var all sync.WaitGroup
	for _, read := range []func(context.Context, *ClusterOptions){b.addPods, b.addObjects, b.addNodes, b.addEvents, b.addAgents} {
		all.Go(func() { read(ctx, &o) })
	}
	all.Wait()
}

// listed is a list of objects of Kubernetes.
type listed struct {
	Kind  string            `json:"kind"`
	Items []json.RawMessage `json:"items"`
}

// list returns the objects for which keep returns true. If keep is nil, it returns all objects.
func (o *ClusterOptions) list(ctx context.Context, r kube.Resource, opts kube.ListOptions, keep func(item []byte) bool) (*listed, error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	l := &listed{Kind: "List", Items: []json.RawMessage{}}
	_, err := o.Client.List(ctx, r, opts, func(item []byte) error {
		if keep == nil || keep(item) {
			l.Items = append(l.Items, slices.Clone(item))
		}
		return nil
	})
	return l, err
}

// addList adds a file with the objects of a kind.
func (b *Bundle) addList(ctx context.Context, o *ClusterOptions, about string, r kube.Resource, opts kube.ListOptions, keep func(item []byte) bool) *listed {
	path := "objects/" + r.Plural + ".json"
	l, err := o.list(ctx, r, opts, keep)
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
		b.addList(ctx, o, "the objects of rail-cni", kube.Resource{Group: "apps", Version: "v1", Plural: plural, Namespace: o.Namespace}, kube.ListOptions{LabelSelector: ownLabel}, nil)
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

// eventObject has the fields of an Event that decide whether the Event is added.
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

// podReasons are the reasons of Events in which the kubelet reports that a pod's network has
// failed.
var podReasons = []string{"FailedCreatePodSandBox", "FailedKillPod", "SandboxChanged", "FailedMount"}

// concerns reports whether the Event comes from rail-cni, is about rail-cni's pods, or is about a pod's
// network.
func (e *eventObject) concerns(o *ClusterOptions) bool {
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
			return json.Unmarshal(item, &e) == nil && e.concerns(o)
		})
}

// podObject has the fields of a pod that are needed to read its logs.
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

// addPods adds the pods of rail-cni and their logs.
func (b *Bundle) addPods(ctx context.Context, o *ClusterOptions) {
	l := b.addList(ctx, o, "the pods of rail-cni", kube.Resource{Version: "v1", Plural: "pods", Namespace: o.Namespace}, kube.ListOptions{LabelSelector: ownLabel}, func(item []byte) bool {
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

// addLog adds the log of a container. If previous is true, it is the log before the container's
// last restart.
func (b *Bundle) addLog(ctx context.Context, o *ClusterOptions, pod, container string, previous bool) {
	path, about := fmt.Sprintf("logs/%s_%s.log", pod, container), ""
	if previous {
		path, about = fmt.Sprintf("logs/%s_%s.previous.log", pod, container), "before its last restart"
	}
	var kept []byte // a log whose end was cut off
	for lines, tooMany := logLines, 0; ; tooMany, lines = lines, lines/fewer {
		text, err := o.log(ctx, pod, container, kube.LogOptions{Since: o.Since, Lines: lines, Bytes: logBytes, Previous: previous})
		if err != nil && kept == nil {
			b.Missing(path, err)
			return
		}
		if err != nil {
			b.Missing(path, fmt.Errorf("the last %d lines have more than %d bytes, so their end is missing: %w", tooMany, logBytes, err))
			b.Add(path, about, kept)
			return
		}
		isWhole := len(text) < logBytes // otherwise the API server has cut off the newest lines
		if !isWhole && lines >= fewer {
			kept = text
			continue
		}
		switch {
		case !isWhole:
			b.Missing(path, fmt.Errorf("the last %d lines have more than %d bytes, so their end is missing", lines, logBytes))
		case tooMany > 0:
			b.Missing(path, fmt.Errorf("only the last %d lines are here, because the last %d lines have more than %d bytes", lines, tooMany, logBytes))
		}
		b.Add(path, about, text)
		return
	}
}

// log returns the log of a container. It returns an error if reading takes longer than listTime.
func (o *ClusterOptions) log(ctx context.Context, pod, container string, opts kube.LogOptions) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	return o.Client.Log(ctx, o.Namespace, pod, container, opts)
}

// Printed lists the files with the output of railctl on each node.
var Printed = []struct {
	File, About string
	Args        []string
}{
	{"show.json", "the attachments in the node's ledger", []string{"show", "-o", "json"}},
	{"nics.json", "the NICs of the node", []string{"nics", "-o", "json"}},
	{"version.json", "the version of railctl on the node", []string{"version", "-o", "json"}},
}

// addAgents adds the output of railctl in the agents' pods.
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
			if err == nil || out.Len() > 0 { // with an error, the output is only a part, and stderr has the reason
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

// each calls do for each number from 0 to n-1. Several calls run at the same time.
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

// bounded is a buffer that takes at most maxPrint bytes.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxPrint {
		return 0, fmt.Errorf("the program printed more than %d bytes", maxPrint)
	}
	return b.Buffer.Write(p)
}
