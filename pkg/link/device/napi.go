package device

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
	"github.com/rail-cni/rail-cni/pkg/nlsocket"
)

// From linux/netdev.h: the settings of NAPI instances. The family "netdev" can report them since
// Linux 6.8, and set them since 6.13.
const (
	netdevNAPIGet = 11
	netdevNAPISet = 14
	napiIfindex   = 1
	napiID        = 2
)

// napiSettings are the settings of a NAPI instance. file is the file in sysfs that sets the setting
// for all instances. A setting without a file is 0 by default.
var napiSettings = []struct {
	kind uint16
	file string
}{
	{5, "napi_defer_hard_irqs"},
	{6, "gro_flush_timeout"},
	{7, ""}, // irq-suspend-timeout
	{8, "threaded"},
}

type napi struct {
	id       []byte
	settings nlattr.Attrs
}

// readNAPI returns the NAPI instances of the link, by their IDs. There are none while the link is
// down (netdev_nl_napi_dump_one).
func (d *handle) readNAPI() []napi {
	if !d.up {
		return nil
	}
	index := binary.NativeEndian.AppendUint32(nil, uint32(d.index))
	answers, err := d.generic.Ask(nlsocket.FamilyNetdev, netdevNAPIGet, unix.NLM_F_DUMP, nlattr.Attrs{{Type: napiIfindex, Value: index}})
	if err != nil {
		return nil
	}
	var found []napi
	for _, a := range answers {
		id, _ := a.Get(napiID)
		if len(id) != 4 {
			continue
		}
		one := napi{id: slices.Clone(id)}
		for _, s := range napiSettings {
			if v, ok := a.Get(s.kind); ok {
				one.settings = append(one.settings, nlattr.Attr{Type: s.kind, Value: slices.Clone(v)})
			}
		}
		found = append(found, one)
	}
	slices.SortFunc(found, func(a, b napi) int {
		return int(int64(binary.NativeEndian.Uint32(a.id)) - int64(binary.NativeEndian.Uint32(b.id)))
	})
	return found
}

// ofDevice returns the value of the setting for all NAPI instances.
func ofDevice(file string, files map[string]string) uint64 {
	value, ok := files[file]
	if !ok {
		return 0
	}
	v, _ := strconv.ParseUint(value, 10, 64)
	return v
}

// ownNAPI returns the settings of each instance, or nil if all instances have the settings of the
// device.
func ownNAPI(all []napi, files map[string]string) [][]byte {
	var settings [][]byte
	differs := false
	for _, one := range all {
		settings = append(settings, nlattr.Marshal(nil, one.settings))
		for _, s := range napiSettings {
			if v, ok := one.settings.Uint(s.kind); ok && v != ofDevice(s.file, files) {
				differs = true
			}
		}
	}
	if !differs {
		return nil
	}
	return settings
}

// adjustNAPI sets the differing settings of each NAPI instance, and returns the names of these
// settings. Call it after the files are written, because they set all instances.
func (d *handle) adjustNAPI(s *Settings) map[string]error {
	differed := map[string]error{}
	all := d.readNAPI()
	if len(s.NAPI) > 0 && len(all) > 0 && len(s.NAPI) != len(all) {
		differed["napi"] = fmt.Errorf("the NIC has %d NAPI instances now, and had %d before", len(all), len(s.NAPI))
		return differed
	}
	for i, one := range all {
		var was nlattr.Attrs
		if len(s.NAPI) > 0 {
			was, _ = nlattr.Parse(s.NAPI[i])
		}
		change := nlattr.Attrs{{Type: napiID, Value: one.id}}
		for _, setting := range napiSettings {
			have, ok := one.settings.Uint(setting.kind)
			want, found := was.Uint(setting.kind)
			if !found {
				want = ofDevice(setting.file, s.Files)
			}
			if !ok || have == want {
				continue
			}
			change = append(change, nlattr.Attr{Type: setting.kind, Value: napiValue(want)})
		}
		if len(change) > 1 {
			_, err := d.generic.Ask(nlsocket.FamilyNetdev, netdevNAPISet, 0, change)
			differed[fmt.Sprintf("napi %d", i)] = err
		}
	}
	return differed
}

// napiValue encodes a number in 32 bits, or in 64 if it needs them (NLA_UINT).
func napiValue(v uint64) []byte {
	if v > math.MaxUint32 {
		return binary.NativeEndian.AppendUint64(nil, v)
	}
	return binary.NativeEndian.AppendUint32(nil, uint32(v))
}
