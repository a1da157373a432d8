package inventory

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// Holder names the holder of an attachment: either a pod or a container.
type Holder struct {
	Pod       string // NAMESPACE/NAME
	Container string // the container's ID, or a prefix of the ID
}

// String returns the holder as text, for example "pod default/web-0".
func (h Holder) String() string {
	if h.Pod != "" {
		return "pod " + h.Pod
	}
	return "container " + h.Container
}

// FindNetns opens the network namespace of the holder h, which must have an attachment in the
// ledger of the state directory. It returns an error if there is no such namespace, or more than
// one.
func FindNetns(stateDir string, h Holder) (*netns.Netns, error) {
	if h.Pod != "" && strings.Count(h.Pod, "/") != 1 {
		return nil, fmt.Errorf("--pod %s: write it as NAMESPACE/NAME, for example default/%s", h.Pod, h.Pod)
	}
	found, err := h.records(stateDir)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s has no living attachment on this node; \"railctl show\" lists the attachments", h)
	}
	if len(found) > 1 {
		var ids []string
		for _, r := range found {
			ids = append(ids, r.ContainerID)
		}
		return nil, fmt.Errorf("%s matches several containers (%s); choose one with --container", h, strings.Join(ids, ", "))
	}
	ns, err := netns.Find(found[0].Netns.ID, found[0].Netns.Path)
	if err == nil && ns == nil {
		err = fmt.Errorf("the netns of %s has just gone", h)
	}
	return ns, err
}

// records returns the holder's records, one for each namespace that still exists.
func (h Holder) records(stateDir string) ([]*ledger.Record, error) {
	if !ledger.Exists(stateDir) {
		return nil, nil
	}
	l, err := ledger.Open(stateDir)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	records, errs := l.SinceBoot()
	var found []*ledger.Record
	for _, r := range records {
		meant := r.Pod.String() == h.Pod
		if h.Container != "" {
			meant = strings.HasPrefix(r.ContainerID, h.Container)
		}
		known := slices.ContainsFunc(found, func(other *ledger.Record) bool { return other.Netns.Equal(r.Netns.ID) })
		if meant && !known && l.Alive(r) {
			found = append(found, r)
		}
	}
	if len(found) == 0 {
		return nil, errors.Join(errs...) // an unreadable record may be the one that is searched
	}
	return found, nil
}
