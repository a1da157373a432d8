package nodefile

import (
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// ReadResources returns the pools of the key "resources", followed by the pools of the files that
// the key names. It returns nil if the key is missing. Like the node file, these files must belong
// to the administrator. If one of the files cannot be read or has a mistake, ReadResources returns
// only an error. Only the device plugin needs the pools. No ADD of a CNI plugin depends on them.
func (n *File) ReadResources() (*resource.Config, error) {
	if n == nil || n.Resources == nil {
		return nil, nil
	}
	c := *n.Resources
	for _, file := range []struct {
		key, path string
		parse     func([]byte) (*resource.Config, error)
	}{
		{"sharedConfigFile", c.SharedConfigFile, resource.ParseSharedDevicePlugin},
		{"sriovConfigFile", c.SRIOVConfigFile, resource.ParseSRIOVDevicePlugin},
	} {
		if file.path == "" {
			continue
		}
		data, info, err := readFile(file.path)
		if err == nil {
			err = checkOwner(info)
		}
		var pools *resource.Config
		if err == nil {
			pools, err = file.parse(data)
		}
		if err == nil {
			err = c.Merge(pools)
		}
		if err != nil {
			return nil, failure.From(err, failure.InvalidConfig, "node file %s: resources.%s: %s", n.place(), file.key, file.path).
				Cure("correct that file, or remove the key")
		}
	}
	return &c, nil
}
