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

// Printable returns name, which a pod may have given to its NIC. If the name has characters
// that control a terminal, Printable returns it quoted.
func Printable(name string) string {
	if !strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) || r == utf8.RuneError }) {
		return name
	}
	return strconv.QuoteToASCII(name)
}

// Cut returns the text. If the text has more than limit characters, Cut shortens it to
// limit characters, and the last one is "…".
func Cut(text string, limit int) string {
	if runes := []rune(text); len(runes) > limit {
		return string(runes[:limit-1]) + "…"
	}
	return text
}

// List returns the parts, separated by commas, with "-" for an empty part. If all parts are
// empty, it returns "".
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

// Number returns the number as text, or "" if n is nil.
func Number(n *int) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(*n)
}

// Speed returns the text of a speed in Mb/s, for example "400G" or "2500M". It returns ""
// if the speed is not positive.
func Speed[N uint32 | int64](mbps N) string {
	switch {
	case mbps <= 0:
		return ""
	case mbps%1000 == 0:
		return fmt.Sprintf("%dG", mbps/1000)
	}
	return fmt.Sprintf("%dM", mbps)
}

// Age returns a duration in a short form with one unit, for example "3h".
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
