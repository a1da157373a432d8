package pciname

import (
	_ "embed"
	"strings"
	"sync"
)

//go:embed names.txt
var names string

// table returns the names, by "15b3:1021".
var table = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(names) {
		if id, name, ok := strings.Cut(strings.TrimSpace(line), " "); ok && id != "#" {
			all[id] = name
		}
	}
	return all
})

// Of returns the name of a PCI device, "" if it is unknown. The IDs are four hexadecimal
// digits each, in lower case.
func Of(vendor, device string) string { return table()[vendor+":"+device] }
