package pciname

import (
	_ "embed"
	"strings"
	"sync"
)

//go:embed names.txt
var names string

// table returns the names by ID. An ID is vendor and device, for example "15b3:1021".
var table = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(names) {
		if id, name, ok := strings.Cut(strings.TrimSpace(line), " "); ok && id != "#" {
			all[id] = name
		}
	}
	return all
})

// Of returns the name of a PCI device, or "" if the name is unknown. vendor and device are
// IDs of four hexadecimal digits in lower case.
func Of(vendor, device string) string { return table()[vendor+":"+device] }
