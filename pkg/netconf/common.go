package netconf

import (
	"encoding"
	"encoding/json"
	"errors"
	"math"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// Common is the part of a network configuration that every plugin has.
type Common struct {
	CNIVersion string    `json:"cniVersion"`
	Name       string    `json:"name"`
	Type       string    `json:"type"`
	IPAM       IPAM      `json:"ipam"`
	DNS        types.DNS `json:"dns"`
	// StateDir is an absolute path. It must be the same for every plugin on a node.
	StateDir string `json:"stateDir"`
	// PrevResult is the result of the plugin before this one. For CHECK and DEL it is the
	// attachment's result.
	PrevResult json.RawMessage `json:"prevResult,omitempty"`
	// RuntimeConfig has the runtime's values for declared capabilities.
	RuntimeConfig RuntimeConfig `json:"runtimeConfig"`
	attachments

	// Raw is the whole configuration, unchanged.
	Raw []byte `json:"-"`

	parsed func() (*template, error) // returns the parsed form of Raw
}

// IPAM is the part of the "ipam" object that the calling plugin needs. Without
// a type the interface gets no address.
type IPAM struct {
	Type string `json:"type"`
}

// RuntimeConfig holds the capability arguments that the suite knows
// (CNI CONVENTIONS.md, "Dynamic Plugin specific fields").
type RuntimeConfig struct {
	DeviceID          string   `json:"deviceID"`
	CNIDeviceInfoFile string   `json:"CNIDeviceInfoFile"`
	MAC               string   `json:"mac"`
	IPs               []string `json:"ips"`
	InfinibandGUID    string   `json:"infinibandGUID"` // for ib-sriov
}

// attachments are the attachments that GC must keep.
type attachments struct {
	// ValidAttachments are the attachments that GC must keep. nil means that
	// the runtime did not send a list; an empty list means none.
	ValidAttachments *[]types.GCAttachment `json:"cni.dev/valid-attachments,omitempty"`
	// LegacyAttachments is the same list under the misspelled key that libcni also sends.
	LegacyAttachments *[]types.GCAttachment `json:"cni.dev/attachments,omitempty"`
}

// Valid returns the attachments that GC must keep, and reports whether the runtime
// sent a list at all.
func (a *attachments) Valid() ([]types.GCAttachment, bool) {
	for _, list := range []*[]types.GCAttachment{a.ValidAttachments, a.LegacyAttachments} {
		if list != nil {
			return *list, true
		}
	}
	return nil, false
}

// AtLeast reports whether the configuration's version is v or newer.
func (c *Common) AtLeast(v string) bool {
	ok, err := version.GreaterThanOrEqualTo(c.CNIVersion, v)
	return err == nil && ok
}

// parse decodes a configuration into conf, and applies the defaults. common must be the Common that
// is embedded in conf.
func parse(stdin []byte, conf any, common *Common) error {
	if err := decode(stdin, conf, "the network configuration"); err != nil {
		return err
	}
	return common.complete(stdin)
}

// decode decodes a document, such as "the network configuration". Its errors name types as JSON
// names them, not as Go does.
func decode(data []byte, into any, document string) error {
	err := json.Unmarshal(data, into)
	var form *json.SyntaxError
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &form):
		return failure.From(err, failure.Decode, "%s is not a JSON object", document).Cure("correct the JSON")
	case !errors.As(err, &wrong):
		return failure.Wrap(err, failure.Decode, "%s", document)
	}
	key := "the whole"
	if wrong.Field != "" {
		key = wrong.Field
		for _, embedded := range []string{"HostDevice.", "Common.", "RDMA.", "Link.", "Routing.", "attachments."} { // users do not know the names of these types
			key = strings.TrimPrefix(key, embedded)
		}
		key = strconv.Quote(key)
	}
	return failure.New(failure.Decode, "%s: %s cannot be %s %s", document, key, article(wrong.Value), wrong.Value).Cure("write it as %s", jsonName(wrong.Type))
}

func jsonName(t reflect.Type) string {
	if t.Implements(fromText) || reflect.PointerTo(t).Implements(fromText) {
		return "a string"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Uint32:
		return "a whole number"
	case reflect.Slice, reflect.Array:
		return "a list"
	default:
		return "an object"
	}
}

var fromText = reflect.TypeFor[encoding.TextUnmarshaler]()

func article(what string) string {
	if strings.HasPrefix(what, "a") || strings.HasPrefix(what, "o") {
		return "an"
	}
	return "a"
}

// checkMTU returns an error for an impossible MTU. The kernel would take the number modulo 2³².
func checkMTU(mtu int) error {
	if mtu < 0 || mtu > math.MaxInt32 {
		return failure.New(failure.InvalidConfig, "invalid MTU %d", mtu).Cure("give a size in bytes, or leave the key out")
	}
	return nil
}

func (c *Common) complete(stdin []byte) error {
	c.Raw = stdin
	t, mistake := parseTemplate(c)
	c.parsed = func() (*template, error) { return t, mistake }
	if c.CNIVersion == "" {
		c.CNIVersion = "0.1.0" // the meaning of a missing version in the CNI SPEC
	}
	dir, err := stateDir(c.StateDir)
	if err == nil {
		c.StateDir = dir
	}
	return err
}

// stateDir returns the state directory for the configured value, which may be empty.
func stateDir(configured string) (string, error) {
	if configured == "" {
		return nodefile.DefaultStateDir, nil
	}
	if !filepath.IsAbs(configured) {
		return "", failure.New(failure.InvalidConfig, `"stateDir": %q is not an absolute path`, configured).
			Cure("give an absolute path, the same in every network of the node")
	}
	return filepath.Clean(configured), nil
}

// Lenient reads only the parts of a configuration that are needed to end an attachment. It ignores
// keys that cannot be read, because a DEL must end an attachment even if the ADD with the same
// configuration failed.
func Lenient(stdin []byte) *Common {
	var keys struct {
		CNIVersion json.RawMessage `json:"cniVersion"`
		Name       json.RawMessage `json:"name"`
		Type       json.RawMessage `json:"type"`
		IPAM       json.RawMessage `json:"ipam"`
		StateDir   json.RawMessage `json:"stateDir"`
	}
	c := &Common{}
	_ = json.Unmarshal(stdin, &keys)
	for _, k := range []struct {
		raw json.RawMessage
		to  any
	}{{keys.CNIVersion, &c.CNIVersion}, {keys.Name, &c.Name}, {keys.Type, &c.Type}, {keys.IPAM, &c.IPAM}, {keys.StateDir, &c.StateDir}} {
		_ = json.Unmarshal(k.raw, k.to)
	}
	if err := c.complete(stdin); err != nil {
		c.StateDir = nodefile.DefaultStateDir
	}
	return c
}
