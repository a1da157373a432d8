package resource

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// Config is the key "resources" of the node file, or the configuration of another device plugin.
// The only exported method that changes it, apart from decoding, is [Config.Merge].
type Config struct {
	PoolConfigs []PoolConfig
	// SharedConfigFile and SRIOVConfigFile are the paths of configurations of
	// k8s-rdma-shared-dev-plugin and sriov-network-device-plugin. This package does not
	// read these files.
	SharedConfigFile string
	SRIOVConfigFile  string
	// AllowOverlap permits that a NIC of an exclusive pool is in other pools too.
	AllowOverlap bool
	// CDI is set if devices are handed to containers by the Container Device Interface.
	CDI    bool
	Health Health
	// Warnings has problems of the configuration itself. [Config.Pools] reports them on
	// every node.
	Warnings []Problem
}

// Health has two times. Down is how long a NIC must be down before it counts as unhealthy. Up is
// how long an unhealthy NIC must be up before it counts as healthy again.
type Health struct{ Down, Up time.Duration }

// maxHealth bounds both times of [Health].
const maxHealth = time.Hour

// defaultHealth returns the times that apply without the key "health".
func defaultHealth() Health { return Health{Down: 10 * time.Second, Up: 30 * time.Second} }

// PoolConfig is the configuration of a pool. With the mode [PerRail] it is the configuration of one
// pool for each rail.
type PoolConfig struct {
	Name string // name of the resource, with its prefix
	Mode Mode
	Max  int // number of devices of a shared pool
	// Select has the selectors. A NIC that matches one of them is selected.
	Select         []Select
	Topology       bool
	UMAD           bool // see [Pool.UMAD]
	AdditionalInfo map[string]map[string]string
}

// maxDevices bounds the number of devices of a shared pool, because the kubelet gets a list of all
// devices whenever one device changes.
const maxDevices = 1 << 16

var (
	configKeys = []string{"pools", "sharedConfigFile", "sriovConfigFile", "allowOverlap", "cdi", "health"}
	poolKeys   = []string{"name", "mode", "max", "select", "topology", "umad"}
	healthKeys = []string{"down", "up"}
)

// UnmarshalYAML implements [yaml.Unmarshaler].
func (c *Config) UnmarshalYAML(node *yaml.Node) error {
	if err := CheckKeys(node, configKeys...); err != nil {
		return fmt.Errorf("resources: %w", err)
	}
	var raw struct {
		Pools            yaml.Node `yaml:"pools"`
		SharedConfigFile *string   `yaml:"sharedConfigFile"`
		SRIOVConfigFile  *string   `yaml:"sriovConfigFile"`
		AllowOverlap     bool      `yaml:"allowOverlap"`
		CDI              bool      `yaml:"cdi"`
		Health           Health    `yaml:"health"`
	}
	raw.Health = defaultHealth()
	if err := node.Decode(&raw); err != nil {
		return err
	}
	var pools []PoolConfig
	if !raw.Pools.IsZero() {
		var err error
		if pools, err = decodeList[PoolConfig](&raw.Pools); err != nil {
			return fmt.Errorf("resources.pools: %w", err)
		}
	}
	for key, file := range map[string]*string{"sharedConfigFile": raw.SharedConfigFile, "sriovConfigFile": raw.SRIOVConfigFile} {
		if file != nil && (!filepath.IsAbs(*file) || filepath.Clean(*file) != *file) {
			return fmt.Errorf("resources.%s: %q is not an absolute path", key, *file)
		}
	}
	*c = Config{
		PoolConfigs: pools, SharedConfigFile: text(raw.SharedConfigFile), SRIOVConfigFile: text(raw.SRIOVConfigFile),
		AllowOverlap: raw.AllowOverlap, CDI: raw.CDI, Health: raw.Health,
	}
	return c.check()
}

// UnmarshalYAML implements [yaml.Unmarshaler].
func (h *Health) UnmarshalYAML(node *yaml.Node) error {
	if err := CheckKeys(node, healthKeys...); err != nil {
		return fmt.Errorf("resources.health: %w", err)
	}
	type plain Health
	if err := node.Decode((*plain)(h)); err != nil {
		return fmt.Errorf(`resources.health: %w; write a duration as "10s"`, err)
	}
	for _, d := range []time.Duration{h.Down, h.Up} {
		if d < 0 || d > maxHealth {
			return fmt.Errorf("line %d: resources.health: %s is not between 0s and %s", node.Line, d, maxHealth)
		}
	}
	return nil
}

// UnmarshalYAML implements [yaml.Unmarshaler].
func (p *PoolConfig) UnmarshalYAML(node *yaml.Node) error {
	if err := CheckKeys(node, poolKeys...); err != nil {
		return err
	}
	var raw struct {
		Name     string  `yaml:"name"`
		Mode     Mode    `yaml:"mode"`
		Max      *int    `yaml:"max"`
		Select   *Select `yaml:"select"`
		Topology *bool   `yaml:"topology"`
		UMAD     bool    `yaml:"umad"`
	}
	if err := node.Decode(&raw); err != nil {
		return err
	}
	what := fmt.Sprintf("line %d: pool %q", node.Line, raw.Name)
	switch {
	case raw.Mode != Shared && raw.Mode != Exclusive && raw.Mode != PerRail:
		return fmt.Errorf("%s: mode is %q, not %s, %s or %s", what, raw.Mode, Shared, Exclusive, PerRail)
	case raw.Mode == Shared && (raw.Max == nil || *raw.Max < 1 || *raw.Max > maxDevices):
		return fmt.Errorf("%s: a shared pool needs max, the number of its devices, from 1 to %d", what, maxDevices)
	case raw.Mode != Shared && raw.Max != nil:
		return fmt.Errorf("%s: max is only for shared pools: %s pools have one device for each NIC; remove max", what, raw.Mode)
	case raw.Select == nil:
		return fmt.Errorf("%s has no select; for all NICs with RDMA devices write select: {rdma: true}", what)
	}
	if err := raw.Select.check(); err != nil {
		return fmt.Errorf("%s: select: %w", what, err)
	}
	*p = PoolConfig{Name: raw.Name, Mode: raw.Mode, Select: []Select{*raw.Select}, Topology: raw.Mode != Shared, UMAD: raw.UMAD}
	if raw.Max != nil {
		p.Max = *raw.Max
	}
	if raw.Topology != nil {
		p.Topology = *raw.Topology
	}
	return nil
}

// check returns an error if the name of a resource is invalid, or if two pools have the same name.
func (c *Config) check() error {
	for i := range c.PoolConfigs {
		p := &c.PoolConfigs[i]
		if err := checkName(p.Name, p.Mode); err != nil {
			return err
		}
		for j := range c.PoolConfigs[:i] {
			if q := &c.PoolConfigs[j]; q.Name == p.Name || q.makes(p.Name) || p.makes(q.Name) {
				return failure.New(failure.InvalidConfig, "two pools have the resource %s", p.Name).Cure("rename one of the pools")
			} else if c.CDI && p.Mode == Shared && q.Mode == Shared && CDIDevice(p.Name) == CDIDevice(q.Name) {
				return failure.New(failure.InvalidConfig, "the pools %s and %s would be one CDI device, %s", q.Name, p.Name, CDIDevice(p.Name)).
					Cure("rename one of the pools")
			}
		}
	}
	return nil
}

// CDIDevice returns the name of the CDI device of a shared pool. The name must never change,
// because containers that already have the device keep using its name.
func CDIDevice(resource string) string { return "pool-" + strings.ReplaceAll(resource, "/", "-") }

// makes reports whether name can be the name of a pool that p makes for one of its rails.
func (p *PoolConfig) makes(name string) bool {
	rail, ok := strings.CutPrefix(name, p.Name+railSuffix)
	number, err := strconv.Atoi(rail)
	return ok && p.Mode == PerRail && err == nil && strconv.Itoa(number) == rail && number >= 0 && number <= MaxRail
}

// railSuffix separates the name of a [PerRail] pool from the number of a rail.
const railSuffix = "_rail_"

// Merge appends the pools and warnings of another configuration. If both configurations have the
// same resource, Merge returns an error and changes nothing.
func (c *Config) Merge(other *Config) error {
	merged := Config{CDI: c.CDI, PoolConfigs: append(c.PoolConfigs[:len(c.PoolConfigs):len(c.PoolConfigs)], other.PoolConfigs...)}
	if err := merged.check(); err != nil {
		return err
	}
	c.PoolConfigs = merged.PoolConfigs
	c.Warnings = append(c.Warnings[:len(c.Warnings):len(c.Warnings)], other.Warnings...)
	return nil
}

// These are the limits of names in Kubernetes (IsExtendedResourceName of k8s.io/kubernetes,
// pkg/apis/core/v1/helper). The name of a quota of the resource is "requests." followed by the
// resource's name.
const (
	maxPrefix = 253 - len(quotaPrefix)
	maxName   = 63

	quotaPrefix  = "requests."
	nativePrefix = "kubernetes.io"
)

// checkName returns an error if the kubelet would refuse the name of the resource, or the name of
// one of the resources for its rails.
func checkName(name string, mode Mode) error {
	why := nameMistake(name)
	if why == "" && mode == PerRail {
		longName := name + railSuffix + strconv.Itoa(MaxRail)
		if _, last, _ := strings.Cut(longName, "/"); len(last) > maxName {
			why = fmt.Sprintf("with %q at its end, its name is longer than %d characters", railSuffix+strconv.Itoa(MaxRail), maxName)
		}
	}
	if why == "" {
		return nil
	}
	return failure.From(errors.New(why), failure.InvalidConfig, "resource %q", name).
		Cure(`use a name such as "rdma/hca_gpu": a DNS subdomain, a slash, and letters, digits, "-", "_" and "."`)
}

func nameMistake(name string) string {
	prefix, last, ok := strings.Cut(name, "/")
	switch {
	case !ok:
		return "it has no prefix"
	case prefix == nativePrefix || strings.HasSuffix(prefix, "."+nativePrefix) || strings.Contains(name, nativePrefix+"/"):
		return "the prefix kubernetes.io belongs to Kubernetes"
	case strings.HasPrefix(name, quotaPrefix):
		return `names that begin with "requests." are reserved for quotas`
	case len(prefix) > maxPrefix:
		return fmt.Sprintf("its prefix is longer than %d characters", maxPrefix)
	case len(last) > maxName:
		return fmt.Sprintf("its name is longer than %d characters", maxName)
	}
	for label := range strings.SplitSeq(prefix, ".") {
		if !within(label, "-") || strings.ToLower(label) != label {
			return fmt.Sprintf("its prefix %q is not a DNS subdomain of small letters, digits and \"-\"", prefix)
		}
	}
	if !within(last, "-_.") {
		return fmt.Sprintf(`%q may have letters, digits, "-", "_" and ".", with a letter or digit first and last`, last)
	}
	return ""
}

// within reports whether text consists of letters, digits and the characters in others, and begins
// and ends with a letter or digit.
func within(text, others string) bool {
	for i := range len(text) {
		switch c := text[i]; {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		case i > 0 && i < len(text)-1 && strings.IndexByte(others, c) >= 0:
		default:
			return false
		}
	}
	return text != ""
}
