package resource

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// sriovPrefix is the prefix of the resources of sriov-network-device-plugin if the key
// resourcePrefix is missing, unless the plugin's flag --resource-prefix sets another prefix.
const sriovPrefix = "intel.com"

// sriovPlugin is the name of the format in errors.
const sriovPlugin = "configuration of sriov-network-device-plugin"

// netDevice is the deviceType of network functions on PCI. It is the default.
const netDevice = "netDevice"

type sriovFile struct {
	ResourceList []sriovPool `json:"resourceList"`
}

type sriovPool struct {
	ResourceName    string                       `json:"resourceName"`
	ResourcePrefix  string                       `json:"resourcePrefix"`
	DeviceType      string                       `json:"deviceType"`
	ExcludeTopology bool                         `json:"excludeTopology"`
	AdditionalInfo  map[string]map[string]string `json:"additionalInfo"`
	Selectors       json.RawMessage              `json:"selectors"`
}

type sriovSelectors struct {
	Vendors      []string `json:"vendors"`
	Devices      []string `json:"devices"`
	Drivers      []string `json:"drivers"`
	PCIAddresses []string `json:"pciAddresses"`
	ACPIIndexes  []string `json:"acpiIndexes"`
	PFNames      []string `json:"pfNames"`
	RootDevices  []string `json:"rootDevices"`
	LinkTypes    []string `json:"linkTypes"`
	PKeys        []string `json:"pKeys"`
	IsRdma       bool     `json:"isRdma"`
}

var (
	sriovFileKeys = []string{"resourceList"}
	sriovPoolKeys = []string{"resourceName", "resourcePrefix", "deviceType", "excludeTopology", "additionalInfo", "selectors"}
	sriovSelKeys  = []string{"vendors", "devices", "drivers", "pciAddresses", "acpiIndexes", "pfNames", "rootDevices", "linkTypes", "pKeys", "isRdma"}
)

// keepPlugin is the cure for a resource that is refused.
const keepPlugin = "keep sriov-network-device-plugin for this resource"

// refused returns the reason why a key of sriov-network-device-plugin is refused, or "" if that
// plugin has no such key. Resources with a refused key need more than NICs of the kernel.
func refused(key string) string {
	switch strings.ToLower(key) {
	case "ddpprofiles":
		return "rail-cni does not know the DDP profiles of NICs"
	case "vdpatype":
		return "vDPA devices are not offered"
	case "needvhostnet":
		return "containers do not get /dev/vhost-net"
	case "auxtypes":
		return "devices of the auxiliary bus are not offered"
	}
	return ""
}

// ParseSRIOVDevicePlugin returns the pools of a config.json of sriov-network-device-plugin
// (pkg/types, cmd/sriovdp). All of these pools are exclusive. It accepts only resources of the
// deviceType netDevice. It returns an error for an unknown key, because ignoring a selector would
// offer more NICs.
func ParseSRIOVDevicePlugin(data []byte) (*Config, error) {
	var file sriovFile
	if err := decode(data, &file, sriovPlugin); err != nil {
		return nil, err
	}
	if err := refuseKeys("", data, sriovFileKeys); err != nil {
		return nil, err
	}
	if len(file.ResourceList) == 0 {
		return nil, mistake(sriovPlugin, "add a resource", "resourceList has no resource")
	}
	c := &Config{Health: defaultHealth()}
	raw := elements(field(data, "resourceList"))
	for i := range file.ResourceList {
		if i >= len(raw) {
			return nil, mistake(sriovPlugin, "remove one of the keys", "the key resourceList is there twice")
		}
		pool, err := file.ResourceList[i].config(fmt.Sprintf("resourceList[%d]", i), raw[i])
		if err != nil {
			return nil, err
		}
		c.PoolConfigs = append(c.PoolConfigs, pool)
	}
	if err := c.check(); err != nil {
		return nil, failure.Wrap(err, failure.InvalidConfig, "%s", sriovPlugin)
	}
	return c, nil
}

// config returns the resource as a pool. object is the JSON from which p was decoded.
func (p *sriovPool) config(path string, object json.RawMessage) (PoolConfig, error) {
	prefix := p.ResourcePrefix
	if prefix == "" {
		prefix = sriovPrefix
	}
	pool := PoolConfig{Name: prefix + "/" + p.ResourceName, Mode: Exclusive, Topology: !p.ExcludeTopology, AdditionalInfo: p.AdditionalInfo}
	what := fmt.Sprintf("%s: resource %q", sriovPlugin, pool.Name)
	if p.DeviceType != "" && p.DeviceType != netDevice {
		return pool, mistake(what, keepPlugin, "deviceType %q is not offered, only "+netDevice, p.DeviceType)
	}
	if err := refuseKeys(path+".", object, sriovPoolKeys); err != nil {
		return pool, err
	}
	const give = "add a selector; {} selects all NICs that may be lent"
	selectors := []json.RawMessage{p.Selectors}
	switch text := strings.TrimSpace(string(p.Selectors)); {
	case text == "" || text == "null":
		return pool, mistake(what, give, "it has no selectors")
	case strings.HasPrefix(text, "["):
		selectors = elements(p.Selectors)
		if len(selectors) == 0 {
			return pool, mistake(what, give, "its list of selectors is empty")
		}
	}
	for i, text := range selectors {
		var s sriovSelectors
		if err := decode(text, &s, what+": selectors"); err != nil {
			return pool, err
		}
		if err := refuseKeys(fmt.Sprintf("%s.selectors[%d].", path, i), text, sriovSelKeys); err != nil {
			return pool, err
		}
		pool.Select = append(pool.Select, s.convert())
	}
	return pool, nil
}

func (s *sriovSelectors) convert() Select {
	out := Select{
		Vendors: s.Vendors, Devices: s.Devices, Drivers: s.Drivers, PCIAddresses: s.PCIAddresses, ACPIIndexes: s.ACPIIndexes,
		PFNames: s.PFNames, RootDevices: s.RootDevices, LinkTypes: s.LinkTypes, PKeys: s.PKeys,
	}
	if s.IsRdma {
		out.RDMA = &s.IsRdma
	}
	return out
}

// refuseKeys returns an error if a JSON object has a key that is not in known. It ignores such a
// key if its value is null, false or empty, because sriov-network-operator writes such keys, for
// example "NeedVhostNet": false and "SelectorObjs": null.
func refuseKeys(prefix string, object json.RawMessage, known []string) error {
	all := members(object)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		same := func(k string) bool { return strings.EqualFold(k, key) }
		if slices.ContainsFunc(known, same) || slices.Contains([]string{"null", "false", `""`, "[]", "{}"}, string(all[key])) {
			continue
		}
		cause, cure := "the key %q is unknown", Suggestion(key, known)
		if why := refused(key); why != "" {
			cause, cure = "the key %q is refused: "+why, keepPlugin
		} else if slices.ContainsFunc(sriovSelKeys, same) {
			cause, cure = "the key %q is not in selectors", "move the key into selectors"
		}
		return mistake(sriovPlugin, cure, cause, prefix+key)
	}
	return nil
}
