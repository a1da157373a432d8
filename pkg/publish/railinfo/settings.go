package railinfo

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// Family names one of the families of environment variables listed in [nodefile.EnvFamilies].
type Family string

// The families of environment variables.
const (
	NCCL    Family = nodefile.EnvNCCL
	UCX     Family = nodefile.EnvUCX
	NVSHMEM Family = nodefile.EnvNVSHMEM
	VLLM    Family = nodefile.EnvVLLM
)

// The annotations of a pod.
const (
	// RailsAnnotation has the compact document, for volumes of the Downward API.
	RailsAnnotation = "rail-cni.io/rails"
	// PublishAnnotation is the pod's choice: "none", or a list of families.
	PublishAnnotation = "rail-cni.io/publish"
	// RequireAnnotation makes the pod wait for the agent if its value is "true".
	RequireAnnotation = "rail-cni.io/require"
)

// nothing is the value of [PublishAnnotation] that turns everything off.
const nothing = "none"

// MountPoint is the path at which containers have the directory of files.
const MountPoint = "/run/rail-cni/pod"

// Settings decide which rail information the pods of a node get, and how they get it.
type Settings struct {
	Env           []Family
	Mount         bool // containers get the directory of files, at [MountPoint]
	Memlock       bool // containers may lock unlimited memory
	Devices       bool // containers get the char devices of their rails
	Annotation    bool // the pod gets [RailsAnnotation]
	FixedGIDIndex bool // NCCL_IB_GID_INDEX is set if the index is the same on all rails
	Isolated      bool // rails do not reach each other
}

// SettingsOf returns the settings in a node file. If file is nil, it returns the defaults.
func SettingsOf(file *nodefile.File) Settings {
	s := Settings{Env: []Family{NCCL, UCX, NVSHMEM}, Mount: true, Memlock: true, Devices: true}
	if file == nil {
		return s
	}
	s.Isolated = file.Fabric == nodefile.FabricIsolated
	p := file.Publish
	if p == nil {
		return s
	}
	if p.Env != nil {
		s.Env = families(p.Env)
	}
	if p.Mount != nil {
		s.Mount = *p.Mount
	}
	if p.Memlock != nil {
		s.Memlock = *p.Memlock
	}
	s.Devices = p.Devices != nodefile.PublishNoDevices
	s.Annotation, s.FixedGIDIndex = p.Annotation, p.GIDIndex == nodefile.GIDIndexFixed
	return s
}

func families(names []string) []Family {
	list := make([]Family, len(names))
	for i, name := range names {
		list[i] = Family(name)
	}
	return list
}

// For returns the settings for a pod with this value of [PublishAnnotation], or "" if the pod does
// not have the annotation. "none" turns off what containers get: Env, Mount, Memlock and Devices.
// If the value has an unknown family, For returns s and an error.
func (s Settings) For(annotation string) (Settings, error) {
	value := strings.TrimSpace(annotation)
	switch value {
	case "":
		return s, nil
	case nothing:
		s.Env, s.Mount, s.Memlock, s.Devices = nil, false, false, false
		return s, nil
	}
	var names []string
	for name := range strings.SplitSeq(value, ",") {
		if name = strings.TrimSpace(name); !slices.Contains(nodefile.EnvFamilies, name) {
			return s, fmt.Errorf("annotation %s: %.40q is not one of %s, %s", PublishAnnotation, name, nothing, strings.Join(nodefile.EnvFamilies, ", "))
		}
		names = append(names, name)
	}
	s.Env = families(names)
	return s, nil
}
