package resource

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// nearest returns the key in keys whose spelling is most similar to key, or "" if none is similar.
func nearest(key string, keys []string) string {
	best, least := "", len(key)/2+2
	for _, k := range keys {
		if d := distance(strings.ToLower(key), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	return best
}

// OneLetterFrom returns the word in words that differs from word only in one letter, or only in the
// order of two neighboring letters. It returns "" if there is no such word, or if word is one of
// words. It ignores case.
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

// swapped reports whether b is a with two neighboring letters exchanged.
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

// maxKey bounds the length of the keys that are compared. All valid keys are shorter.
const maxKey = 40

// distance returns how many bytes must be inserted, removed or replaced to turn a into b.
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

// Suggestion returns the end of an error about an unknown key: the most similar valid key, or all
// valid keys.
func Suggestion(key string, keys []string) string {
	if near := nearest(key, keys); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return "the keys are " + strings.Join(keys, ", ")
}

// maxMerges bounds the number of mappings that a mapping may merge with "<<". The bound is needed
// because a mapping that merges itself would never end.
const maxMerges = 100

// CheckKeys returns an error if the YAML node is not a mapping, or if it has a key that is not in
// keys. The error has the line, and names the most similar valid key.
//
// CheckKeys is needed because [yaml.Decoder.KnownFields] has no effect inside an UnmarshalYAML.
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

// printable returns the text, with quotes if it needs quotes.
func printable(text string) string {
	if quoted := strconv.Quote(text); quoted != `"`+text+`"` || text == "" {
		return quoted
	}
	return text
}

// decodeList decodes a list. The result is never nil if err is nil. The YAML decoder silently drops
// entries without a value, but decodeList returns an error for them.
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
