package objects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

const (
	nfdPrefix    = "feature.node.kubernetes.io/" // the prefix of the labels of Node Feature Discovery
	statusKey    = "k8s.v1.cni.cncf.io/network-status"
	oldStatusKey = "k8s.v1.cni.cncf.io/networks-status"
	resourceKey  = "k8s.v1.cni.cncf.io/resourceName"
	maxStatus    = 64 << 10 // the maximum size, in bytes, of an annotation; a pod may have written it
	maxNetwork   = 64 << 10 // the maximum size of a network's configuration, in bytes
	maxRequests  = 8        // the maximum number of annotations of a pod that seem to ask for networks
)

// AnswerTime bounds the requests for one fact.
const AnswerTime = 1500 * time.Millisecond

// rdmaWords are words in the names of resources. A resource with one of these words in its name
// stands for RDMA NICs.
var rdmaWords = []string{"rdma", "hca", "roce", "sriov", "mlnx", "infiniband"}

// Reader reads objects of the API server.
type Reader struct {
	Client   *kube.Client
	NoClient error // why there is no client, if Client is nil
	// OfPod: the client's account is that of the pod in which this process runs, and not of a
	// person.
	OfPod    bool
	NodeName string // of the node whose objects are read
}

// Source returns the source of a fact that comes from an object of the API server.
func (c *Reader) Source(object string) string {
	if c.Client == nil {
		return "the API server"
	}
	return c.Client.Server() + " " + object
}

// Node is a node of the cluster.
type Node struct {
	Metadata kube.Meta `json:"metadata"`
	Spec     struct {
		PodCIDR  string   `json:"podCIDR"`
		PodCIDRs []string `json:"podCIDRs"`
	} `json:"spec"`
	Status struct {
		Allocatable map[string]string `json:"allocatable"`
		Capacity    map[string]string `json:"capacity"`
		Addresses   []struct {
			Type    string `json:"type"`
			Address string `json:"address"`
		} `json:"addresses"`
	} `json:"status"`
}

// NFDLabels returns the node's labels from Node Feature Discovery.
func (n *Node) NFDLabels() map[string]string {
	found := map[string]string{}
	for key, value := range n.Metadata.Labels {
		if strings.HasPrefix(key, nfdPrefix) {
			found[key] = value
		}
	}
	return found
}

// Answered returns a context for requests to the API server. Its deadline limits how long failed
// requests are repeated.
func Answered(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, AnswerTime)
}

// These are the reasons why an account may not read a fact. Each reason is one line in a report, so
// one text serves all facts.
var (
	errPodMayNot    = errors.New("the account of this pod has no right to read it, and does not need the right; to check it, run railctl doctor cluster on a machine with your own kubeconfig")
	errPersonMayNot = errors.New("the account of the kubeconfig has no right to read it; use the account of an administrator, with --kubeconfig or --context")
)

// refused returns the error to report for a failed request. If the request was forbidden, the error
// does not say how to allow it, because the agent and the plugins must not get more rights
// (SECURITY.md).
func (c *Reader) refused(err error) error {
	switch {
	case !kube.IsForbidden(err):
		return err
	case c.OfPod:
		return errPodMayNot
	}
	return errPersonMayNot
}

// Node returns the node of the reader.
func (c *Reader) Node(ctx context.Context) (*Node, error) {
	if c.Client == nil {
		return nil, c.NoClient
	}
	ctx, cancel := Answered(ctx)
	defer cancel()
	text, err := c.Client.Get(ctx, kube.Resource{Version: "v1", Plural: "nodes"}, c.NodeName)
	if err != nil {
		return nil, c.refused(err)
	}
	n := &Node{}
	return n, json.Unmarshal(text, n)
}

// DevicesOf returns the number of devices of each extended resource whose name suggests RDMA NICs.
// A resource whose number is not an integer is not an extended resource, so it is left out.
func DevicesOf(all map[string]string) map[string]int64 {
	found := map[string]int64{}
	for name, text := range all {
		n, err := strconv.ParseInt(text, 10, 64)
		if err == nil && strings.Contains(name, "/") && isRDMAResource(name) {
			found[name] = n
		}
	}
	return found
}

func isRDMAResource(name string) bool {
	for _, word := range rdmaWords {
		if strings.Contains(strings.ToLower(name), word) {
			return true
		}
	}
	return false
}

// Pod is the metadata of a pod.
type Pod struct {
	Metadata kube.Meta `json:"metadata"`
}

// NotEnded is the field selector of pods that have not ended.
const NotEnded = "status.phase!=Succeeded,status.phase!=Failed"

// OnThisNode returns the field selector of the pods on the reader's node.
func (c *Reader) OnThisNode() string { return "spec.nodeName=" + c.NodeName }

// Pods returns the metadata of the node's pods, by "namespace/name".
func (c *Reader) Pods(ctx context.Context) (map[string]Pod, error) {
	return c.PodsWhere(ctx, c.OnThisNode())
}

// PodsWhere returns the metadata of the pods that match the field selector, by "namespace/name".
func (c *Reader) PodsWhere(ctx context.Context, fields string) (map[string]Pod, error) {
	if c.Client == nil {
		return nil, c.NoClient
	}
	ctx, cancel := Answered(ctx)
	defer cancel()
	pods, err := ListPods(ctx, c.Client, fields)
	return pods, c.refused(err)
}

// ListPods returns the metadata of the cluster's pods with these fields, by "namespace/name".
func ListPods(ctx context.Context, client *kube.Client, fields string) (map[string]Pod, error) {
	found := map[string]Pod{}
	_, err := client.List(ctx, kube.Resource{Version: "v1", Plural: "pods"}, kube.ListOptions{FieldSelector: fields, MetadataOnly: true}, func(item []byte) error {
		var p Pod
		if err := json.Unmarshal(item, &p); err != nil {
			return err
		}
		found[p.Metadata.Namespace+"/"+p.Metadata.Name] = p
		return nil
	})
	return found, err
}

// Is reports whether the pod can be the pod of a record with this UID. It returns false if the pod
// is another pod with the same name.
func (p *Pod) Is(uid string) bool {
	return uid == "" || p.Metadata.UID == "" || p.Metadata.UID == uid
}

// ErrNoPod is the error for a pod that is in the ledger but not in the API server.
var ErrNoPod = errors.New("the API server has no such pod on this node")

// NetworkStatus returns the pod's annotation network-status, which Multus writes. It returns "" if
// there is none.
func (p *Pod) NetworkStatus() (string, error) {
	for _, key := range []string{statusKey, oldStatusKey} {
		if text := p.Metadata.Annotations[key]; text != "" {
			if len(text) > maxStatus {
				return "", fmt.Errorf("the annotation %s has %d bytes, more than %d", key, len(text), maxStatus)
			}
			return text, nil
		}
	}
	return "", nil
}

// Requests returns, for each pod, the annotation key that asks for networks. If a pod does not have
// the right key, requests returns the pod's keys that resemble it. Their number is limited, because
// everyone who makes pods can choose any number of keys.
func Requests(pods map[string]Pod) map[string][]string {
	found := map[string][]string{}
	for pod, p := range pods {
		if _, ok := p.Metadata.Annotations[fact.NetworksKey]; ok {
			found[pod] = []string{fact.NetworksKey}
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(p.Metadata.Annotations)) {
			group, name, _ := strings.Cut(key, "/")
			resembles := strings.HasSuffix("."+group, ".cni.cncf.io") && strings.HasPrefix(strings.ToLower(name), "net")
			if resembles && key != statusKey && key != oldStatusKey && len(found[pod]) < maxRequests {
				found[pod] = append(found[pod], key)
			}
		}
	}
	return found
}

// NADs returns the networks of the cluster. It returns none if the cluster has no Multus.
func (c *Reader) NADs(ctx context.Context) ([]fact.Config, error) {
	if c.Client == nil {
		return nil, c.NoClient
	}
	found := []fact.Config{}
	_, err := c.Client.List(ctx, kube.Resource{Group: "k8s.cni.cncf.io", Version: "v1", Plural: "network-attachment-definitions"}, kube.ListOptions{}, func(item []byte) error {
		var nad struct {
			Metadata kube.Meta `json:"metadata"`
			Spec     struct {
				Config string `json:"config"`
			} `json:"spec"`
		}
		if err := json.Unmarshal(item, &nad); err != nil {
			return err
		}
		name := nad.Metadata.Namespace + "/" + nad.Metadata.Name
		if len(nad.Spec.Config) > maxNetwork {
			return fmt.Errorf("the configuration of %s has %d bytes, more than %d", name, len(nad.Spec.Config), maxNetwork)
		}
		found = append(found, fact.Config{Kind: fact.NADConfig, Name: name, Text: nad.Spec.Config, Resource: nad.Metadata.Annotations[resourceKey]})
		return nil
	})
	if NoSuchKind(err) {
		err = nil
	}
	return found, c.refused(err)
}

// NoSuchKind reports whether err means that the server does not know the kind.
func NoSuchKind(err error) bool {
	var answer *kube.Error
	return errors.As(err, &answer) && answer.Status == 404
}

// Networks returns the prefixes of the cluster's pods, services and nodes. Some prefixes cannot be
// found. An API server does not report the prefixes of services if it is older than Kubernetes
// 1.33, or if the account may not read them. A cluster has no prefixes of pods if its network
// plugin assigns addresses without podCIDR.
func (c *Reader) Networks(ctx context.Context) (map[string][]string, error) {
	if c.Client == nil {
		return nil, c.NoClient
	}
	found := map[string][]string{}
	_, err := c.Client.List(ctx, kube.Resource{Version: "v1", Plural: "nodes"}, kube.ListOptions{}, func(item []byte) error {
		var n Node
		if err := json.Unmarshal(item, &n); err != nil {
			return err
		}
		cidrs := n.Spec.PodCIDRs
		if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
			cidrs = []string{n.Spec.PodCIDR}
		}
		found["pods"] = append(found["pods"], cidrs...)
		for _, a := range n.Status.Addresses {
			if a.Type != "InternalIP" {
				continue
			}
			bits := "/32"
			if strings.Contains(a.Address, ":") {
				bits = "/128"
			}
			found["nodes"] = append(found["nodes"], a.Address+bits)
		}
		return nil
	})
	if err != nil {
		return nil, c.refused(err)
	}
	_, err = c.Client.List(ctx, kube.Resource{Group: "networking.k8s.io", Version: "v1", Plural: "servicecidrs"}, kube.ListOptions{}, func(item []byte) error {
		var s struct {
			Spec struct {
				CIDRs []string `json:"cidrs"`
			} `json:"spec"`
		}
		if err := json.Unmarshal(item, &s); err != nil {
			return err
		}
		found["services"] = append(found["services"], s.Spec.CIDRs...)
		return nil
	})
	if NoSuchKind(err) || kube.IsForbidden(err) {
		err = nil
	}
	return found, err
}
