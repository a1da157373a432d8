package cell

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Printable returns a name that a pod may have given to its NIC, quoted if it has
// characters for the terminal.
func Printable(name string) string {
	if !strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) || r == utf8.RuneError }) {
		return name
	}
	return strconv.QuoteToASCII(name)
}

// Cut returns the text, shortened to limit characters of which the last is "…".
func Cut(text string, limit int) string {
	if runes := []rune(text); len(runes) > limit {
		return string(runes[:limit-1]) + "…"
	}
	return text
}

// List returns the parts, separated by commas, with "-" for an empty one. Without any text it
// returns "".
func List(parts []string) string {
	if !slices.ContainsFunc(parts, func(s string) bool { return s != "" }) {
		return ""
	}
	text := make([]string, len(parts))
	for i, s := range parts {
		text[i] = cmp.Or(s, "-")
	}
	return strings.Join(text, ",")
}

// Number returns the number, "" for none.
func Number(n *int) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(*n)
}

// Speed returns the text of a speed in Mb/s, "400G" or "2500M"; "" if it is not positive.
func Speed[N uint32 | int64](mbps N) string {
	switch {
	case mbps <= 0:
		return ""
	case mbps%1000 == 0:
		return fmt.Sprintf("%dG", mbps/1000)
	}
	return fmt.Sprintf("%dM", mbps)
}

// Age returns a duration in its short form, in one unit.
func Age(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
