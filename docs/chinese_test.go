package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// englishOf returns the English page of a Chinese one, and false for any other page.
func englishOf(page string) (string, bool) {
	if page == chinesePage {
		return readmePage, true
	}
	name, ok := strings.CutPrefix(page, "docs/zh/")
	return "docs/" + name, ok
}

// chineseOf returns the Chinese page of an English one, and false if there is none.
func chineseOf(t *testing.T, page string) (string, bool) {
	t.Helper()
	name := chinesePage
	if page != readmePage {
		below, ok := strings.CutPrefix(page, "docs/")
		if !ok {
			return "", false
		}
		name = "docs/zh/" + below
	}
	_, err := os.Stat(filepath.Join(root(t), name))
	return name, err == nil
}

// TestChinesePagesAreNotStale compares each Chinese page with its English one: the blocks of
// code and of output are the same, in the same order, and all code between backquotes is
// there: commands, keys, error texts. A Chinese page may have more sections.
func TestChinesePagesAreNotStale(t *testing.T) {
	translated := 0
	for _, page := range pages(t) {
		english, ok := englishOf(page)
		if !ok || page == chinesePage {
			continue // TestBothREADMEsSayTheSame has the README
		}
		translated++
		en, zh := Page(t, english), Page(t, page)
		want, got := Blocks(en), Blocks(zh)
		if len(want) != len(got) {
			t.Errorf("%s is stale: it has %d blocks, and %s has %d", page, len(got), english, len(want))
		}
		for i := range min(len(want), len(got)) {
			if want[i].Language != got[i].Language || want[i].Text != got[i].Text {
				t.Errorf("%s is stale: copy this block from %s:\n%s", page, english, want[i].Text)
			}
		}
		have := map[string]int{}
		for _, word := range inline.FindAllString(fenced.ReplaceAllString(zh, ""), -1) {
			have[word]++
		}
		for _, word := range inline.FindAllString(fenced.ReplaceAllString(en, ""), -1) {
			if have[word]--; have[word] < 0 {
				t.Errorf("%s is stale: %s has %s more often", page, english, word)
			}
		}
	}
	if translated < 5 {
		t.Errorf("only %d Chinese pages", translated)
	}
}

// TestChinesePagesLinkToChinesePages demands that a link leads to the translation of a page where
// there is one.
func TestChinesePagesLinkToChinesePages(t *testing.T) {
	for _, page := range pages(t) {
		if _, ok := englishOf(page); !ok {
			continue
		}
		for _, link := range links(Page(t, page)) {
			name, _, relative := target(page, link)
			if !relative || page == chinesePage && name == readmePage {
				continue
			}
			if chinese, ok := chineseOf(t, name); ok {
				t.Errorf("%s links to %s, and %s is its translation", page, link, chinese)
			}
		}
	}
}

var (
	asciiPunctuation = regexp.MustCompile(`\p{Han}[,;:?!()]|[,;?!()]\p{Han}`)
	touching         = regexp.MustCompile("\\p{Han}[A-Za-z0-9`]|[A-Za-z0-9`]\\p{Han}")
)

// TestChinesePagesAreWrittenInOneWay finds ASCII punctuation beside Chinese characters, and
// letters and digits without a space between.
func TestChinesePagesAreWrittenInOneWay(t *testing.T) {
	for _, page := range pages(t) {
		if _, ok := englishOf(page); !ok {
			continue
		}
		text := inline.ReplaceAllString(fenced.ReplaceAllString(Page(t, page), ""), "`x`")
		text = linkText.ReplaceAllString(strings.ReplaceAll(text, "![", "["), "$1")
		for line := range strings.Lines(text) {
			for _, fault := range slices.Concat(asciiPunctuation.FindAllString(line, -1), touching.FindAllString(line, -1)) {
				t.Errorf("%s: %q in %s", page, fault, line)
			}
		}
	}
}
