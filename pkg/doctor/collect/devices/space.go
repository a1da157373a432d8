package devices

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/publish"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// ecn returns the congestion control of an interface. It returns the zero ECN if the driver has no
// files for it.
func (sp *space) ecn(name string) (fact.ECN, error) {
	dir, err := sp.dir()
	if err != nil {
		return fact.ECN{}, err
	}
	if dir, err = within(dir, []string{"class", "net", name, "ecn"}); err != nil {
		return fact.ECN{}, err
	}
	return ecnIn(dir)
}

// ecnIn reads the directory "ecn" of an interface. That directory contains one directory for each
// role of the NIC. Its subdirectory "enable" contains one file for each priority.
func ecnIn(dir string) (fact.ECN, error) {
	if exists, err := files.Exists(dir); !exists {
		return fact.ECN{}, err
	}
	enabled := func(role string) (string, error) {
		var priorities []string
		for priority := range 8 {
			p := strconv.Itoa(priority)
			value, err := files.ReadText(filepath.Join(dir, role, "enable", p))
			if err != nil {
				return "", err
			}
			if strings.TrimSpace(value) == "1" {
				priorities = append(priorities, p)
			}
		}
		return strings.Join(priorities, ","), nil
	}
	np, err := enabled("roce_np")
	if err != nil {
		return fact.ECN{}, err
	}
	rp, err := enabled("roce_rp")
	if err != nil {
		return fact.ECN{}, err
	}
	return fact.ECN{Known: true, NP: np, RP: rp}, nil
}

// spaces are the network namespaces of the host and of pods.
type spaces struct{ inventory.Namespaces }

// space is the network namespace of the host or of a pod.
type space struct{ *inventory.Namespace }

// podNetns returns the network namespace of the record's pod. If r is nil, it returns the namespace
// of the calling thread.
func (s *spaces) podNetns(r *ledger.Record) *space {
	if r == nil {
		return &space{s.Host()}
	}
	return &space{s.Pod(r)}
}

// rdma returns the RDMA devices of the namespace. It returns none if the kernel has no RDMA core.
func (sp *space) rdma() ([]rdma.Device, error) {
	devices, err := sp.Devices()
	if errors.Is(err, rdma.ErrNoRDMA) {
		return nil, nil
	}
	return devices, err
}

// file returns the text of a file in the sysfs of the namespace. The parts form the path. A part
// may be a name that a pod chose.
func (sp *space) file(parts ...string) (string, error) {
	dir, err := sp.dir()
	if err != nil {
		return "", err
	}
	path, err := within(dir, parts)
	if err != nil {
		return "", err
	}
	return files.ReadText(path)
}

// dir returns the root directory of the sysfs of the namespace.
func (sp *space) dir() (string, error) {
	if sp.Err != nil {
		return "", sp.Err
	}
	fd, err := sp.Netns.Sysfs()
	return "/proc/self/fd/" + strconv.Itoa(fd), err
}

// within returns the path that the parts form below dir. It returns an error if a part is not a
// single element of a path.
func within(dir string, parts []string) (string, error) {
	for _, part := range parts {
		if !filepath.IsLocal(part) || part == "." || strings.ContainsRune(part, filepath.Separator) {
			return "", fmt.Errorf("%q is not a file name", part)
		}
	}
	return filepath.Join(append([]string{dir}, parts...)...), nil
}

// port returns the facts about a port. mtu is the MTU of the port's interface, or 0 if the port has
// no interface.
func (sp *space) port(d rdma.Device, number uint32, mtu int, gids bool) (fact.Port, error) {
	p, err := sp.Core.Port(d, number)
	if err != nil {
		return fact.Port{}, err
	}
	found := fact.Port{
		Device: d.Name, Port: number, State: p.State.String(), PhysState: physState(p.Phys), LinkLayer: p.LinkLayer,
		ActiveMTU: publish.ActiveMTU(p.LinkLayer, mtu),
	}
	const netlink = "RDMA netlink"
	source := fmt.Sprintf("class/infiniband/%s/ports/%d/", d.Name, number)
	if p.LinkLayer == "InfiniBand" {
		found.LID, found.SMLID, found.IsSM = fact.Known(p.LID, netlink), fact.Known(p.SMLID, netlink), fact.Known(p.IsSM, netlink)
		keys, err := sp.Core.PKeys(d, number)
		table := []fact.PKey{}
		for _, k := range keys {
			table = append(table, fact.PKey{Index: k.Index, Key: fmt.Sprintf("%#04x", k.Key)})
		}
		found.PKeys = fact.From(table, source+"pkeys", err)
	}
	if !gids {
		return found, nil
	}
	table, err := sp.Core.GIDs(d, number)
	found.TableSize = table.Size
	list := []fact.GID{}
	for _, e := range table.Entries {
		list = append(list, fact.GID{Index: e.Index, Value: e.GID.String(), Type: string(e.Type), Netdev: e.Netdev})
	}
	found.GIDs = fact.From(list, source+"gids", err)
	return found, nil
}

// addresses returns the addresses of a link, with their prefix lengths.
func (sp *space) addresses(index int) ([]string, error) {
	nets, err := link.SomeAddresses(sp.Netns, index, maxAddresses)
	found := []string{}
	for _, n := range nets {
		found = append(found, n.String())
	}
	return found, err
}

// maxAddresses is the maximum number of addresses of an interface. A pod may add any number of
// addresses.
const maxAddresses = 64

// physState returns the state in the form that sysfs uses, for example "LinkUp".
func physState(s rdma.PhysState) string {
	var b strings.Builder
	for word := range strings.SplitSeq(s.String(), "_") {
		if word != "" {
			b.WriteString(word[:1] + strings.ToLower(word[1:]))
		}
	}
	return b.String()
}

// findDevice returns the first device of the list for which is returns true.
func findDevice(list []rdma.Device, is func(rdma.Device) bool) (rdma.Device, error) {
	i := slices.IndexFunc(list, is)
	if i < 0 {
		return rdma.Device{}, fmt.Errorf("%w here: the device is being moved, or its driver was unloaded", rdma.ErrNotFound)
	}
	return list[i], nil
}

// listed returns the names in a directory of the namespace's sysfs. It returns none if the
// directory does not exist.
func (sp *space) listed(parts ...string) ([]string, error) {
	dir, err := sp.dir()
	if err != nil {
		return nil, err
	}
	path, err := within(dir, parts)
	if err != nil {
		return nil, err
	}
	return files.Names(path)
}
