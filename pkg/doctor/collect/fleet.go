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
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/objects"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
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
func Cluster(ctx context.Context, o ClusterOptions) (*fact.Facts, error) {
	f := &fleet{ClusterOptions: o}
	if err := f.findAgents(ctx); err != nil {
		return nil, err
	}
	found := &fact.Facts{Schema: fact.Schema, Taken: time.Now().UTC().Truncate(time.Second), Version: o.Version, Cluster: &fact.Cluster{}}
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
	found.Cluster.Silent = fact.Known(silent, "exec in the pods of rail-agent")
	return found, nil
}

// fleet is one collection.
type fleet struct {
	ClusterOptions
	agents []agentPod // sorted by node

	// These are the facts that the API server has about all nodes.
	nodes fact.Fact[map[string]*objects.Node]
	pods  fact.Fact[map[string]objects.Pod]
}

// agentPod is the pod of rail-agent on a node.
type agentPod struct {
	remote.Pod
	facts *fact.Facts
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
func (f *fleet) ask(ctx context.Context, a *agentPod) (*fact.Facts, error) {
	text, err := a.Facts(ctx, f.Client)
	if err != nil {
		return nil, err
	}
	facts, err := fact.Decode(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	facts.Node, facts.Cluster = a.Node, nil // an agent must not claim facts about other nodes
	return facts, nil
}

// readObjects reads the facts that the API server has.
func (f *fleet) readObjects(ctx context.Context, to *fact.Cluster) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	c := &objects.Reader{Client: f.Client}
	var all sync.WaitGroup
	all.Go(func() {
		nodes := map[string]*objects.Node{}
		_, err := f.Client.List(ctx, kube.Resource{Version: "v1", Plural: "nodes"}, kube.ListOptions{}, func(item []byte) error {
			n := &objects.Node{}
			if err := json.Unmarshal(item, n); err != nil {
				return err
			}
			nodes[n.Metadata.Name] = n
			return nil
		})
		f.nodes = fact.From(nodes, c.Source("nodes"), err)
	})
	all.Go(func() {
		pods, err := f.livingPods(ctx)
		f.pods = fact.From(pods, c.Source("pods"), err)
		to.Pods = fact.From(slices.Sorted(maps.Keys(pods)), c.Source("pods"), err)
		to.Requests = fact.From(objects.Requests(pods), c.Source("pods"), err)
		leases, err := f.leases(ctx)
		to.Leases = fact.From(leases, c.Source("ippools "+f.Client.Namespace()), err)
		f.newPods(ctx, to)
	})
	all.Go(func() {
		nads, err := c.NADs(ctx)
		to.NADs = fact.From(nads, c.Source("network-attachment-definitions"), err)
	})
	all.Go(func() {
		networks, err := c.Networks(ctx)
		to.Networks = fact.From(networks, c.Source("nodes, servicecidrs"), err)
	})
	all.Wait()
}

// livingPods returns the metadata of the cluster's pods that have not ended, by "namespace/name".
func (f *fleet) livingPods(ctx context.Context) (map[string]objects.Pod, error) {
	return objects.ListPods(ctx, f.Client, objects.NotEnded)
}

// newPods lists the pods again if a lease belongs to a pod that is not known yet: the pod may have
// been made after the first list. So every lease of a living pod finds its pod.
func (f *fleet) newPods(ctx context.Context, to *fact.Cluster) {
	pods := map[string]bool{}
	for _, name := range to.Pods.Value {
		pods[name] = true
	}
	unknown := slices.ContainsFunc(to.Leases.Value, func(l fact.Lease) bool { return l.Pod != "" && !pods[l.Pod] })
	if !unknown || !to.Pods.OK() {
		return
	}
	now, err := f.livingPods(ctx)
	for name := range now {
		pods[name] = true
	}
	to.Pods = fact.From(slices.Sorted(maps.Keys(pods)), to.Pods.Source, err)
}

// leases returns the allocated addresses in the cluster's pools. It returns none if the cluster
// does not have the kinds of whereabouts.
func (f *fleet) leases(ctx context.Context) ([]fact.Lease, error) {
	found := []fact.Lease{}
	survey, err := api.Inspect(ctx, f.Client)
	if objects.NoSuchKind(err) {
		return found, nil
	}
	if err != nil {
		return nil, err
	}
	for i := range survey.Holdings {
		h := &survey.Holdings[i]
		found = append(found, fact.Lease{Pool: h.Pool.Name, Address: h.Addr.String(), Pod: h.PodRef, Container: h.ContainerID, IfName: h.IfName})
	}
	return found, errors.Join(survey.Errors...)
}

// complete adds the facts from the API server to the facts of a node, because the node's agent
// cannot read them.
func (f *fleet) complete(n *fact.Facts, cluster *fact.Cluster) {
	if n.Kubelet == nil {
		n.Kubelet = &fact.Kubelet{}
	}
	node, err := f.nodes.Value[n.Node], error(nil)
	switch {
	case !f.nodes.OK():
		node, err = &objects.Node{}, errors.New(f.nodes.Error)
	case node == nil:
		node, err = &objects.Node{}, errors.New("the API server has no such node")
	}
	n.Kubelet.Allocatable = fact.From(objects.DevicesOf(node.Status.Allocatable), f.nodes.Source, err)
	n.Kubelet.Capacity = fact.From(objects.DevicesOf(node.Status.Capacity), f.nodes.Source, err)
	n.Kubelet.Labels = fact.From(node.NFDLabels(), f.nodes.Source, err)
	if n.Configs == nil {
		n.Configs = &fact.Configs{}
	}
	n.Configs.NADs, n.Configs.Networks, n.Configs.Requests = cluster.NADs, cluster.Networks, cluster.Requests
	for i := range n.Pods {
		p := &n.Pods[i]
		object, ok := f.pods.Value[p.Namespace+"/"+p.Name]
		switch {
		case !f.pods.OK():
			p.Status = fact.Failed[string](f.pods.Source, errors.New(f.pods.Error))
		case !ok, !object.Is(p.UID):
			p.Status = fact.Failed[string](f.pods.Source, objects.ErrNoPod)
		default:
			status, err := object.NetworkStatus()
			p.Status = fact.From(status, f.pods.Source, err)
		}
	}
}
