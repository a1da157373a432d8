package rule

import (
	"fmt"
	"strconv"
	"strings"
)

// MaxShown bounds a list in a report, unless the report is verbose: the findings of a rule, or names.
const MaxShown = 10

// Shortened returns a list of names for a person: ten of them, and the number of the others.
func Shortened(names []string) string {
	text := strings.Join(names[:min(len(names), MaxShown)], ", ")
	if more := len(names) - MaxShown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Clean returns text with "?" in place of each character that cannot be printed, and cut to a
// maximum length. Names in a file of facts, or chosen by a pod, may have such characters.
func Clean(text string) string {
	const maxText = 1000
	if len(text) > maxText {
		text = text[:maxText] + " …"
	}
	return strings.Map(func(c rune) rune {
		if strconv.IsPrint(c) {
			return c
		}
		return '?'
	}, strings.ToValidUTF8(text, "?"))
}

// Plain reports whether a name can stand in a shell command without quotes. The facts may come from
// a stranger, and people paste the commands of a report into a shell.
func Plain(name string) bool {
	return name != "" && name[0] != '-' && strings.IndexFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("._-:@/", c)
	}) < 0
}
