package collect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
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

// rdmaWords are words in the names of resources. A resource with one of these words in its name
// stands for RDMA NICs.
var rdmaWords = []string{"rdma", "hca", "roce", "sriov", "mlnx", "infiniband"}

// apiSource returns the source of a fact that comes from an object of the API server.
func (c *collector) apiSource(object string) string {
	if c.Client == nil {
		return "the API server"
	}
	return c.Client.Server() + " " + object
}

// ofCluster reads the facts that the API server has about the node, its pods and the networks.
func (c *collector) ofCluster(ctx context.Context, f *doctor.Facts) {
	c.podsByAPI = sync.OnceValues(func() (map[string]podObject, error) { return c.podObjects(ctx) })
	node := sync.OnceValues(func() (*nodeObject, error) { return c.nodeObject(ctx) })
	source := c.apiSource("nodes " + c.Node)
	counts := func(of func(*nodeObject) map[string]string) func(context.Context) (map[string]int64, error) {
		return func(context.Context) (map[string]int64, error) {
			n, err := node()
			if err != nil {
				return nil, err
			}
			return devicesOf(of(n)), nil
		}
	}
	k := f.Kubelet
	take(ctx, c, &k.Allocatable, source, answerTime, counts(func(n *nodeObject) map[string]string { return n.Status.Allocatable }))
	take(ctx, c, &k.Capacity, source, answerTime, counts(func(n *nodeObject) map[string]string { return n.Status.Capacity }))
	take(ctx, c, &k.Labels, source, answerTime, func(context.Context) (map[string]string, error) {
		n, err := node()
		if err != nil {
			return nil, err
		}
		return n.nfdLabels(), nil
	})
	take(ctx, c, &f.Configs.Files, nodefile.Path(), localTime, nodeFiles)
	if c.alone() {
		return // without a cluster there are no networks
	}
	take(ctx, c, &f.Configs.NADs, c.apiSource("network-attachment-definitions"), answerTime, c.nads)
	take(ctx, c, &f.Configs.Networks, c.apiSource("nodes, servicecidrs"), answerTime, c.networks)
	take(ctx, c, &f.Configs.Requests, c.apiSource("pods"), answerTime, func(ctx context.Context) (map[string][]string, error) {
		pods, err := c.podsWhere(ctx, c.onThisNode()+","+notEnded)
		return requests(pods), err
	})
}

// alone reports whether the machine belongs to no cluster.
func (c *collector) alone() bool { return c.Client == nil && !c.isNode() }

type nodeObject struct {
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

// nfdLabels returns the node's labels from Node Feature Discovery.
func (n *nodeObject) nfdLabels() map[string]string {
	found := map[string]string{}
	for key, value := range n.Metadata.Labels {
		if strings.HasPrefix(key, nfdPrefix) {
			found[key] = value
		}
	}
	return found
}

// answered returns a context for requests to the API server. Its deadline limits how long failed
// requests are repeated.
func answered(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, answerTime)
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
func (c *collector) refused(err error) error {
	switch {
	case !kube.IsForbidden(err):
		return err
	case c.OfPod:
		return errPodMayNot
	}
	return errPersonMayNot
}

func (c *collector) nodeObject(ctx context.Context) (*nodeObject, error) {
	if c.Client == nil {
		return nil, c.NoClient
	}
	ctx, cancel := answered(ctx)
	defer cancel()
	text, err := c.Client.Get(ctx, kube.Resource{Version: "v1", Plural: "nodes"}, c.Node)
	if err != nil {
		return nil, c.refused(err)
	}
	n := &nodeObject{}
	return n, json.Unmarshal(text, n)
}

// devicesOf returns the number of devices of each extended resource whose name suggests RDMA NICs.
// A resource whose number is not an integer is not an extended resource, so it is left out.
func devicesOf(all map[string]string) map[string]int64 {
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

type podObject struct {
	Metadata kube.Meta `json:"metadata"`
}

// notEnded is the field selector of pods that have not ended.
const notEnded = "status.phase!=Succeeded,status.phase!=Failed"

func (c *collector) onThisNode() string { return "spec.nodeName=" + c.Node }

// podObjects returns the metadata of the node's pods, by "namespace/name".
func (c *collector) podObjects(ctx context.Context) (map[string]podObject, error) {
	return c.podsWhere(ctx, c.onThisNode())
}

// podsWhere returns the metadata of the pods that match the field selector, by "namespace/name".
func (c *collector) podsWhere(ctx context.Context, fields string) (map[string]podObject, error) {
	if c.Client == nil {
		return nil, c.NoClient
	}
	ctx, cancel := answered(ctx)
	defer cancel()
	pods, err := listPods(ctx, c.Client, fields)
	return pods, c.refused(err)
}

func listPods(ctx context.Context, client *kube.Client, fields string) (map[string]podObject, error) {
	found := map[string]podObject{}
	_, err := client.List(ctx, kube.Resource{Version: "v1", Plural: "pods"}, kube.ListOptions{FieldSelector: fields, MetadataOnly: true}, func(item []byte) error {
		var p podObject
		if err := json.Unmarshal(item, &p); err != nil {
			return err
		}
		found[p.Metadata.Namespace+"/"+p.Metadata.Name] = p
		return nil
	})
	return found, err
}

// networkStatus returns the annotation network-status of a pod. It returns "" if the pod has none.
func (c *collector) networkStatus(_ context.Context, pod string) (string, error) {
	if c.alone() {
		return "", nil
	}
	pods, err := c.podsByAPI()
	if err != nil {
		return "", err
	}
	p, ok := pods[pod]
	if !ok {
		return "", errNoPod
	}
	return p.networkStatus()
}

// is reports whether the pod can be the pod of a record with this UID. It returns false if the pod
// is another pod with the same name.
func (p *podObject) is(uid string) bool {
	return uid == "" || p.Metadata.UID == "" || p.Metadata.UID == uid
}

// errNoPod is the error for a pod that is in the ledger but not in the API server.
var errNoPod = errors.New("the API server has no such pod on this node")

// networkStatus returns the pod's annotation network-status, which Multus writes. It returns "" if
// there is none.
func (p *podObject) networkStatus() (string, error) {
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

// requests returns, for each pod, the annotation key that asks for networks. If a pod does not have
// the right key, requests returns the pod's keys that resemble it. Their number is limited, because
// everyone who makes pods can choose any number of keys.
func requests(pods map[string]podObject) map[string][]string {
	found := map[string][]string{}
	for pod, p := range pods {
		if _, ok := p.Metadata.Annotations[doctor.NetworksKey]; ok {
			found[pod] = []string{doctor.NetworksKey}
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

// nads returns the networks of the cluster. It returns none if the cluster has no Multus.
func (c *collector) nads(ctx context.Context) ([]doctor.Config, error) {
	if c.Client == nil {
		return nil, c.NoClient
	}
	found := []doctor.Config{}
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
		found = append(found, doctor.Config{Kind: doctor.NADConfig, Name: name, Text: nad.Spec.Config, Resource: nad.Metadata.Annotations[resourceKey]})
		return nil
	})
	if noSuchKind(err) {
		err = nil
	}
	return found, c.refused(err)
}

// noSuchKind reports whether err means that the server does not know the kind.
func noSuchKind(err error) bool {
	var answer *kube.Error
	return errors.As(err, &answer) && answer.Status == 404
}

// nodeFiles returns the node file and the files that it names. A file that cannot be parsed is also
// returned, because a rule judges it.
func nodeFiles(context.Context) ([]doctor.Config, error) {
	found := []doctor.Config{}
	path := nodefile.Path()
	text, err := readText(path)
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	if err != nil {
		return nil, err
	}
	found = append(found, doctor.Config{Kind: doctor.NodeFile, Name: path, Text: text})
	file, err := nodefile.Parse([]byte(text))
	if err != nil || file.Resources == nil {
		return found, nil //nolint:nilerr // see above
	}
	for _, f := range []struct {
		kind doctor.ConfigKind
		path string
	}{{doctor.SharedConfig, file.Resources.SharedConfigFile}, {doctor.SRIOVConfig, file.Resources.SRIOVConfigFile}} {
		if f.path == "" {
			continue
		}
		text, err := readText(f.path)
		if errors.Is(err, os.ErrPermission) {
			return nil, err
		}
		if err == nil { // if the file cannot be read, the inventory reports the problem
			found = append(found, doctor.Config{Kind: f.kind, Name: f.path, Text: text})
		}
	}
	return found, nil
}

// networks returns the prefixes of the cluster's pods, services and nodes. Some prefixes cannot be
// found. An API server does not report the prefixes of services if it is older than Kubernetes
// 1.33, or if the account may not read them. A cluster has no prefixes of pods if its network
// plugin assigns addresses without podCIDR.
func (c *collector) networks(ctx context.Context) (map[string][]string, error) {
	if c.Client == nil {
		return nil, c.NoClient
	}
	found := map[string][]string{}
	_, err := c.Client.List(ctx, kube.Resource{Version: "v1", Plural: "nodes"}, kube.ListOptions{}, func(item []byte) error {
		var n nodeObject
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
	if noSuchKind(err) || kube.IsForbidden(err) {
		err = nil
	}
	return found, err
}
