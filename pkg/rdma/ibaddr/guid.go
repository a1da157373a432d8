package ibaddr

import (
	"fmt"
	"strconv"
	"strings"
)

// GUID is the 64-bit identifier of a node or of a system image. Its text has the form in sysfs:
// "5054:00ff:fe12:3456".
type GUID uint64

func (g GUID) String() string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", uint16(g>>48), uint16(g>>32), uint16(g>>16), uint16(g))
}

// parseGUID reads the text that String writes.
func parseGUID(s string) (GUID, error) {
	parts := strings.Split(s, ":")
	if len(parts) != 4 {
		return 0, fmt.Errorf("GUID %q: not four groups of hexadecimal digits", s)
	}
	var g GUID
	for _, p := range parts {
		n, err := strconv.ParseUint(p, 16, 16)
		if err != nil || len(p) != 4 {
			return 0, fmt.Errorf("GUID %q: %q is not four hexadecimal digits", s, p)
		}
		g = g<<16 | GUID(n)
	}
	return g, nil
}

// MarshalText returns the text of String, so that a GUID in a record is readable.
func (g GUID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (g *GUID) UnmarshalText(text []byte) (err error) {
	*g, err = parseGUID(string(text))
	return err
}
