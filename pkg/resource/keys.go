package resource

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// nearest returns the key that is spelled most like the given one, "" if none is like it.
func nearest(key string, keys []string) string {
	best, least := "", len(key)/2+2
	for _, k := range keys {
		if d := distance(strings.ToLower(key), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	return best
}

// OneLetterFrom returns the word that differs from the given one in one letter, or in the order
// of two neighbors, "" if none does or the word is one of them. Case does not count as a letter.
func OneLetterFrom(word string, words []string) string {
	if slices.Contains(words, word) {
		return ""
	}
	lower := strings.ToLower(word)
	for _, w := range words {
		if distance(lower, w) <= 1 || swapped(lower, w) {
			return w
		}
	}
	return ""
}

// swapped reports whether b is a with two neighbors exchanged.
func swapped(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	return i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
}

// maxKey bounds the keys that are compared. No valid one is as long.
const maxKey = 40

// distance returns how many bytes must be inserted, removed or replaced to make b from a.
func distance(a, b string) int {
	if len(a) > maxKey || len(b) > maxKey {
		return len(a) + len(b)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// Suggestion returns what an error about an unknown key ends with: the valid key that is
// nearest, or all.
func Suggestion(key string, keys []string) string {
	if near := nearest(key, keys); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return "the keys are " + strings.Join(keys, ", ")
}

// maxMerges bounds the mappings that a mapping may merge with "<<": one that merges itself
// has no end.
const maxMerges = 100

// CheckKeys returns an error if the YAML node is not a mapping, or has another key than
// these. The error has the line, and names the valid key that is nearest.
//
// [yaml.Decoder.KnownFields] has no effect inside of an UnmarshalYAML.
func CheckKeys(node *yaml.Node, keys ...string) error {
	merges := 0
	return checkKeys(node, keys, &merges)
}

func checkKeys(node *yaml.Node, keys []string, merges *int) error {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if node.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: expected a mapping with the keys %s", node.Line, strings.Join(keys, ", "))
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		var err error
		switch {
		case key.Tag == "!!merge":
			merged := []*yaml.Node{value}
			if value.Kind == yaml.SequenceNode {
				merged = value.Content
			}
			for _, m := range merged {
				if *merges++; *merges > maxMerges {
					return fmt.Errorf("line %d: more than %d mappings are merged", key.Line, maxMerges)
				}
				if err = checkKeys(m, keys, merges); err != nil {
					break
				}
			}
		case !slices.Contains(keys, key.Value):
			err = fmt.Errorf("line %d: field %s not found; %s", key.Line, printable(key.Value), Suggestion(key.Value, keys))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// printable returns the text with quotes if it needs them.
func printable(text string) string {
	if quoted := strconv.Quote(text); quoted != `"`+text+`"` || text == "" {
		return quoted
	}
	return text
}

// decodeList decodes a list, which is not nil then. The decoder drops entries without a
// value; here they are an error.
func decodeList[T any](node *yaml.Node) ([]T, error) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	list := []T{}
	if err := node.Decode(&list); err != nil {
		return nil, err
	}
	if len(list) != len(node.Content) {
		return nil, fmt.Errorf("line %d: an entry has no value", node.Line)
	}
	return list, nil
}
