package reconcile

import (
	"context"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

const (
	// notTerminal selects the pods that may still use their addresses.
	notTerminal = "status.phase!=Succeeded,status.phase!=Failed"
	// fewPods is the largest number of pods of one namespace that are read one by one. If
	// there are more, the namespace is listed. TestReconcileThousands measures both ways.
	fewPods = 100
)

func podsOf(namespace string) kube.Resource {
	return kube.Resource{Version: "v1", Plural: "pods", Namespace: namespace}
}

// podState is the relevant state of a pod.
type podState struct {
	uid string
	// terminal is the pod's phase if that phase is Succeeded or Failed, and "" otherwise.
	terminal string
	// settled is set if the pod is running and ready. Then its status is not of a former
	// sandbox. It is not set if only the pod's metadata was read, because the metadata does
	// not show it.
	settled bool
	// status has the addresses of each interface. It is nil if the pod has no readable
	// annotation of Multus.
	status map[string][]netip.Addr
}

// parsePod reads a pod, or only its metadata.
func parsePod(data []byte) (ref string, p *podState, err error) {
	var pod struct {
		Metadata kube.Meta `json:"metadata"`
		Status   struct {
			Phase      string `json:"phase"`
			Conditions []struct {
				Type, Status string
			} `json:"conditions"`
		} `json:"status"`
	}
	if err := json.Unmarshal(data, &pod); err != nil {
		return "", nil, err
	}
	p = &podState{uid: pod.Metadata.UID, status: parseStatus(pod.Metadata.Annotations[nadv1.NetworkStatusAnnot])}
	switch pod.Status.Phase {
	case "Succeeded", "Failed":
		p.terminal = pod.Status.Phase
	case "Running":
		for _, c := range pod.Status.Conditions {
			p.settled = p.settled || c.Type == "Ready" && c.Status == "True"
		}
	}
	return pod.Metadata.Namespace + "/" + pod.Metadata.Name, p, nil
}

// parseStatus reads the annotation that Multus writes at the end of a pod's
// ADD. It returns nil for unreadable text.
func parseStatus(text string) map[string][]netip.Addr {
	var networks []nadv1.NetworkStatus
	if text == "" || json.Unmarshal([]byte(text), &networks) != nil {
		return nil
	}
	status := map[string][]netip.Addr{}
	for _, n := range networks {
		for _, ip := range n.IPs {
			if a, err := netip.ParseAddr(ip); err == nil {
				status[n.Interface] = append(status[n.Interface], a.Unmap())
			}
		}
	}
	return status
}

// names reports whether the status has addr on the interface ifname, or on any interface if
// ifname is "".
func (p *podState) names(ifname string, addr netip.Addr) bool {
	for name, addrs := range p.status {
		if (ifname == "" || name == ifname) && slices.Contains(addrs, addr) {
			return true
		}
	}
	return false
}

// splitRef splits "namespace/name". ok is false for any other text: such a text does not
// name a pod, and the server cannot be asked about it.
func splitRef(ref string) (namespace, name string, ok bool) {
	namespace, name, ok = strings.Cut(ref, "/")
	return namespace, name, ok && kube.InPath(namespace) && kube.InPath(name)
}

// getPod requests one pod. It returns nil if the pod does not exist.
func getPod(ctx context.Context, client *kube.Client, ref string) (*podState, error) {
	namespace, name, _ := splitRef(ref)
	data, err := client.Get(ctx, podsOf(namespace), name)
	if kube.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	_, p, err := parsePod(data)
	return p, err
}

// getPods requests each pod, several concurrently. It returns an error for each
// failed request.
func getPods(ctx context.Context, client *kube.Client, refs []string) (map[string]*podState, map[string]error) {
	var mu sync.Mutex
	found, failed := map[string]*podState{}, map[string]error{}
	all := api.NewGroup()
	for _, ref := range refs {
		all.Go(func() error {
			p, err := getPod(ctx, client, ref)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[ref] = err
			} else if p != nil {
				found[ref] = p
			}
			return nil
		})
	}
	_ = all.Wait() // failed has the errors
	return found, failed
}

// livePods returns the state of the pods in refs that exist. Terminal pods may be missing
// in live. failed has the errors of the pods whose state is unknown.
func livePods(ctx context.Context, client *kube.Client, refs map[string]bool) (live map[string]*podState, failed map[string]error, err error) {
	byNamespace := map[string][]string{}
	for ref := range refs {
		namespace, _, _ := splitRef(ref)
		byNamespace[namespace] = append(byNamespace[namespace], ref)
	}
	live = map[string]*podState{}
	var single []string
	for namespace, named := range byNamespace {
		if len(named) <= fewPods {
			single = append(single, named...)
			continue
		}
		_, err := client.List(ctx, podsOf(namespace), kube.ListOptions{MetadataOnly: true, FieldSelector: notTerminal}, func(item []byte) error {
			ref, p, err := parsePod(item)
			if err == nil && refs[ref] {
				live[ref] = p
			}
			return err
		})
		if err != nil {
			return nil, nil, err
		}
	}
	found, failed := getPods(ctx, client, single)
	for _, err := range failed {
		if api.IsTransient(err) || api.IsDenied(err) { // an error that is not about this pod
			return nil, nil, err
		}
	}
	maps.Copy(live, found)
	return live, failed, nil
}
