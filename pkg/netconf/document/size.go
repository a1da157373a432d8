package document

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// The author of a network decides the size of its configuration. Each interface keeps the
// configuration in the node's memory until the interface ends. Real configurations have 1 KiB.
const (
	maxConfig = 64 << 10 // size of a configuration
	maxKept   = 16 << 10 // size of the kept part
	keptWhole = 4 << 10  // up to this size a configuration is kept unchanged
)

var (
	// ofOneCall are the keys that belong to one call of the runtime.
	ofOneCall = []string{"prevResult", "cni.dev/valid-attachments", "cni.dev/attachments"}
	// forDEL are the keys that IPAM plugins read to free addresses: the keys of the plugins of
	// containernetworking/plugins (host-local, dhcp, static) and of whereabouts. Only rail-cni's
	// whereabouts reads stateDir.
	forDEL = []string{"cniVersion", "name", "type", "ipam", "args", "runtimeConfig", "stateDir"}
)

// CheckSize returns an error if a configuration is larger than 64 KiB, not counting the keys that
// belong to one call.
func CheckSize(stdin []byte) error {
	if len(stdin) <= maxConfig {
		return nil
	}
	_, size, err := lasting(stdin)
	if err == nil && size > maxConfig {
		err = failure.New(failure.InvalidConfig, "the network configuration has %d bytes, more than %d", size, maxConfig).
			Cure("remove keys that no plugin reads")
	}
	return err
}

// Kept returns the part of a configuration that is kept to end the attachment, without the keys
// that belong to one call. Up to 4 KiB the keys of unknown IPAM plugins are kept as well
// (calico-ipam reads "kubernetes" next to "ipam"). Above 4 KiB only the keys are kept that IPAM
// plugins are known to read. Kept returns an error above 16 KiB.
func Kept(stdin []byte) (json.RawMessage, error) {
	keys, size, err := lasting(stdin)
	if err != nil {
		return nil, err
	}
	if size > keptWhole {
		maps.DeleteFunc(keys, func(key string, _ json.RawMessage) bool { return !hasKey(forDEL, key) })
	}
	kept, err := json.Marshal(keys)
	if err == nil && len(kept) > maxKept {
		err = failure.New(failure.InvalidConfig, "the keys %s of the network configuration have %d bytes, but at most %d are kept for each interface",
			strings.Join(forDEL, ", "), len(kept), maxKept).
			Cure("make them shorter")
	}
	return kept, err
}

// lasting returns the keys of a configuration without the keys that belong to one call. size is
// their size in bytes.
func lasting(stdin []byte) (keys map[string]json.RawMessage, size int, err error) {
	if err := json.Unmarshal(stdin, &keys); err != nil {
		return nil, 0, fmt.Errorf("network configuration: %w", err)
	}
	maps.DeleteFunc(keys, func(key string, _ json.RawMessage) bool { return hasKey(ofOneCall, key) })
	for key, value := range keys {
		size += len(key) + len(value)
	}
	return keys, size, nil
}

// hasKey reports whether keys has the key, compared as encoding/json does.
func hasKey(keys []string, key string) bool {
	return slices.ContainsFunc(keys, func(k string) bool { return strings.EqualFold(k, key) })
}
