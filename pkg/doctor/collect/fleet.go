package collect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/agent/remote"
	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// These are the limits for the facts of a cluster.
const (
	maxNodesAtOnce = 32
	listTime       = 10 * time.Second // for listing the objects of one kind
)

// ClusterOptions are the options of [Cluster].
type ClusterOptions struct {
	Client *kube.Client
	// AgentNamespace is the namespace of the agents' pods.
	AgentNamespace string
	Nodes          []string // the nodes to ask; if empty, all nodes
	Version        string   // version of the program
	// Done, if it is not nil, is called each time a node has answered or its time limit has passed.
	// It may be called from any goroutine.
	Done func(answered, all int)
}

// Cluster returns the facts of the cluster, including the facts of each node that has a rail-agent.
// It asks all agents at the same time, through the API server. Then it adds what the API server
// knows about each node to the node's facts. It returns an error if it cannot list the agents.
func Cluster(ctx context.Context, o ClusterOptions) (*doctor.Facts, error) {
	f := &fleet{ClusterOptions: o}
	if err := f.findAgents(ctx); err != nil {
		return nil, err
	}
	found := &doctor.Facts{Schema: doctor.Schema, Taken: time.Now().UTC().Truncate(time.Second), Version: o.Version, Cluster: &doctor.Cluster{}}
	var beside sync.WaitGroup
	beside.Go(func() { f.readObjects(ctx, found.Cluster) })
	f.askAgents(ctx)
	beside.Wait()
	silent := map[string]string{}
	for i := range f.agents {
		a := &f.agents[i]
		if a.err != nil {
			silent[a.name()] = a.err.Error()
			continue
		}
		f.complete(a.facts, found.Cluster)
		found.Cluster.Nodes = append(found.Cluster.Nodes, a.facts)
	}
	found.Cluster.Silent = doctor.Known(silent, "exec in the pods of rail-agent")
	return found, nil
}

// fleet is one collection.
type fleet struct {
	ClusterOptions
	agents []agentPod // sorted by node

	// These are the facts that the API server has about all nodes.
	nodes doctor.Fact[map[string]*nodeObject]
	pods  doctor.Fact[map[string]podObject]
}

// agentPod is the pod of rail-agent on a node.
type agentPod struct {
	remote.Pod
	facts *doctor.Facts
	err   error
}

// name returns the name of the node. If the pod has no node yet, name returns a text with the name
// of the pod.
func (a *agentPod) name() string { return cmp.Or(a.Node, "of pod "+a.Name) }

// findAgents lists the agents' pods.
func (f *fleet) findAgents(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	pods, err := remote.Pods(ctx, f.Client, f.AgentNamespace)
	for _, p := range pods {
		if len(f.Nodes) > 0 && !slices.Contains(f.Nodes, p.Node) {
			continue
		}
		f.agents = append(f.agents, agentPod{Pod: p})
	}
	return err
}

// askAgents asks all agents. It asks only a limited number of them at the same time.
func (f *fleet) askAgents(ctx context.Context) {
	slots := make(chan struct{}, maxNodesAtOnce)
	var all sync.WaitGroup
	var mu sync.Mutex
	answered := 0
	for i := range f.agents {
		a := &f.agents[i]
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			a.facts, a.err = f.ask(ctx, a)
			mu.Lock()
			defer mu.Unlock()
			answered++
			if f.Done != nil {
				f.Done(answered, len(f.agents))
			}
		})
	}
	all.Wait()
}

// ask returns the facts of an agent's node.
func (f *fleet) ask(ctx context.Context, a *agentPod) (*doctor.Facts, error) {
	text, err := a.Facts(ctx, f.Client)
	if err != nil {
		return nil, err
	}
	facts, err := doctor.ReadFacts(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	facts.Node, facts.Cluster = a.Node, nil // an agent must not claim facts about other nodes
	return facts, nil
}

// readObjects reads the facts that the API server has.
func (f *fleet) readObjects(ctx context.Context, to *doctor.Cluster) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	c := &collector{Options: Options{Client: f.Client}}
	var all sync.WaitGroup
	all.Go(func() {
		nodes := map[string]*nodeObject{}
		_, err := f.Client.List(ctx, kube.Resource{Version: "v1", Plural: "nodes"}, kube.ListOptions{}, func(item []byte) error {
			n := &nodeObject{}
			if err := json.Unmarshal(item, n); err != nil {
				return err
			}
			nodes[n.Metadata.Name] = n
			return nil
		})
		f.nodes = doctor.From(nodes, c.apiSource("nodes"), err)
	})
	all.Go(func() {
		pods, err := f.livingPods(ctx)
		f.pods = doctor.From(pods, c.apiSource("pods"), err)
		to.Pods = doctor.From(slices.Sorted(maps.Keys(pods)), c.apiSource("pods"), err)
		to.Requests = doctor.From(requests(pods), c.apiSource("pods"), err)
		leases, err := f.leases(ctx)
		to.Leases = doctor.From(leases, c.apiSource("ippools "+f.Client.Namespace()), err)
		f.newPods(ctx, to)
	})
	all.Go(func() {
		nads, err := c.nads(ctx)
		to.NADs = doctor.From(nads, c.apiSource("network-attachment-definitions"), err)
	})
	all.Go(func() {
		networks, err := c.networks(ctx)
		to.Networks = doctor.From(networks, c.apiSource("nodes, servicecidrs"), err)
	})
	all.Wait()
}

// livingPods returns the metadata of the cluster's pods that have not ended, by "namespace/name".
func (f *fleet) livingPods(ctx context.Context) (map[string]podObject, error) {
	return listPods(ctx, f.Client, notEnded)
}

// newPods lists the pods again if a lease belongs to a pod that is not known yet: the pod may have
// been made after the first list. So every lease of a living pod finds its pod.
func (f *fleet) newPods(ctx context.Context, to *doctor.Cluster) {
	pods := map[string]bool{}
	for _, name := range to.Pods.Value {
		pods[name] = true
	}
	unknown := slices.ContainsFunc(to.Leases.Value, func(l doctor.Lease) bool { return l.Pod != "" && !pods[l.Pod] })
	if !unknown || !to.Pods.OK() {
		return
	}
	now, err := f.livingPods(ctx)
	for name := range now {
		pods[name] = true
	}
	to.Pods = doctor.From(slices.Sorted(maps.Keys(pods)), to.Pods.Source, err)
}

// leases returns the allocated addresses in the cluster's pools. It returns none if the cluster
// does not have the kinds of whereabouts.
func (f *fleet) leases(ctx context.Context) ([]doctor.Lease, error) {
	found := []doctor.Lease{}
	survey, err := api.Inspect(ctx, f.Client)
	if noSuchKind(err) {
		return found, nil
	}
	if err != nil {
		return nil, err
	}
	for i := range survey.Holdings {
		h := &survey.Holdings[i]
		found = append(found, doctor.Lease{Pool: h.Pool.Name, Address: h.Addr.String(), Pod: h.PodRef, Container: h.ContainerID, IfName: h.IfName})
	}
	return found, errors.Join(survey.Errors...)
}

// complete adds the facts from the API server to the facts of a node, because the node's agent
// cannot read them.
func (f *fleet) complete(n *doctor.Facts, of *doctor.Cluster) {
	if n.Kubelet == nil {
		n.Kubelet = &doctor.Kubelet{}
	}
	node, err := f.nodes.Value[n.Node], error(nil)
	switch {
	case !f.nodes.OK():
		node, err = &nodeObject{}, errors.New(f.nodes.Error)
	case node == nil:
		node, err = &nodeObject{}, errors.New("the API server has no such node")
	}
	n.Kubelet.Allocatable = doctor.From(devicesOf(node.Status.Allocatable), f.nodes.Source, err)
	n.Kubelet.Capacity = doctor.From(devicesOf(node.Status.Capacity), f.nodes.Source, err)
	n.Kubelet.Labels = doctor.From(node.nfdLabels(), f.nodes.Source, err)
	if n.Configs == nil {
		n.Configs = &doctor.Configs{}
	}
	n.Configs.NADs, n.Configs.Networks, n.Configs.Requests = of.NADs, of.Networks, of.Requests
	for i := range n.Pods {
		p := &n.Pods[i]
		object, ok := f.pods.Value[p.Namespace+"/"+p.Name]
		switch {
		case !f.pods.OK():
			p.Status = doctor.Failed[string](f.pods.Source, errors.New(f.pods.Error))
		case !ok, !object.is(p.UID):
			p.Status = doctor.Failed[string](f.pods.Source, errNoPod)
		default:
			status, err := object.networkStatus()
			p.Status = doctor.From(status, f.pods.Source, err)
		}
	}
}
