package mutate

import (
	"fmt"
	"strings"
)

// Markdown returns the table of docs/reference/returned.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString("| what a pod sets | by | after DEL | tried on |\n|---|---|---|---|\n")
	for _, m := range Table {
		device := "veth"
		if m.Rig {
			device = "the rig's NIC"
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s |\n", m.Name, m.By, m.Fate, device)
	}
	return b.String()
}
