package docs

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// pages returns the paths of all pages of the tree, from its top.
func pages(t *testing.T) []string {
	t.Helper()
	var found []string
	dir := root(t)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && (relative == "bin" || relative == ".git" || relative == ".cache" || d.Name() == "testdata"):
			return filepath.SkipDir
		case !d.IsDir() && strings.HasSuffix(name, ".md"):
			found = append(found, filepath.ToSlash(relative))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 20 {
		t.Fatalf("only %d pages: %v", len(found), found)
	}
	return found
}

var (
	fenced   = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	inline   = regexp.MustCompile("`[^`\n]+`")
	heading  = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *#*$`)
	linkText = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	linkTo   = regexp.MustCompile(`\]\(<?([^)\s>]+)>?(?: "[^"]*")?\)`)
	figure   = regexp.MustCompile(`[0-9][0-9.]*[0-9]`)
	sourceOf = regexp.MustCompile(`(?:src|srcset|href)="([^"]+)"`)
)

// anchors returns the anchors of a page's headings, as GitHub and GitLab make them.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		var b strings.Builder
		for _, r := range strings.ToLower(linkText.ReplaceAllString(m[1], "$1")) {
			switch {
			case r == ' ':
				b.WriteByte('-')
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				b.WriteRune(r)
			}
		}
		anchor := b.String()
		for n := 1; all[anchor]; n++ {
			anchor = fmt.Sprintf("%s-%d", b.String(), n)
		}
		all[anchor] = true
	}
	return all
}

// links returns where the links and pictures of a page lead.
func links(text string) []string {
	text = inline.ReplaceAllString(fenced.ReplaceAllString(text, ""), "")
	var all []string
	for _, m := range slices.Concat(linkTo.FindAllStringSubmatch(text, -1), sourceOf.FindAllStringSubmatch(text, -1)) {
		all = append(all, m[1])
	}
	return all
}

// target returns the path from the top of the tree, and the anchor, that a relative
// link of a page leads to. It reports false for a link to another site.
func target(page, link string) (name, anchor string, relative bool) {
	u, err := url.Parse(link)
	if err != nil {
		return link, "", true // a file of this name does not exist
	}
	if u.Scheme != "" || u.Host != "" {
		return "", "", false
	}
	if u.Path == "" {
		return page, u.Fragment, true
	}
	return path.Join(path.Dir(page), u.Path), u.Fragment, true
}

func TestRelativeLinksAndAnchorsLeadSomewhere(t *testing.T) {
	for _, page := range pages(t) {
		for _, link := range links(Page(t, page)) {
			name, anchor, relative := target(page, link)
			if !relative {
				continue
			}
			if strings.HasPrefix(name, "../") || path.IsAbs(name) {
				t.Errorf("%s: the link %s leads out of the tree", page, link)
				continue
			}
			if _, err := os.Stat(filepath.Join(root(t), name)); err != nil {
				t.Errorf("%s: the link %s leads nowhere: %v", page, link, err)
				continue
			}
			if anchor != "" && strings.HasSuffix(name, ".md") && !anchors(Page(t, name))[anchor] {
				t.Errorf("%s: the link %s: %s has no such heading", page, link, name)
			}
		}
	}
}

// TestPagesThatTheCodeNamesExist looks for the pages, and the headings in them, that texts of
// programs, alerts and manifests lead to.
func TestPagesThatTheCodeNamesExist(t *testing.T) {
	named := regexp.MustCompile(`\b((?:docs/(?:guide|reference)|deployments|examples)/[A-Za-z/-]*\.md)(?:#([a-z0-9-]+))?`)
	seen := 0
	for _, top := range []string{"cmd", "pkg", "plugins", "deployments", "examples", "scripts"} {
		err := filepath.WalkDir(filepath.Join(root(t), top), func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".md") {
				return err
			}
			data, err := os.ReadFile(name)
			for _, m := range named.FindAllStringSubmatch(string(data), -1) {
				seen++
				if _, err := os.Stat(filepath.Join(root(t), m[1])); err != nil {
					t.Errorf("%s names %s: %v", name, m[0], err)
				} else if m[2] != "" && !anchors(Page(t, m[1]))[m[2]] {
					t.Errorf("%s names %s, which has no such heading", name, m[0])
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen < 30 {
		t.Errorf("only %d pages are named", seen)
	}
}

const (
	readmePage  = "README.md"
	chinesePage = "README.zh-CN.md"
)

// A reader of either language finds every page behind at most two links.
func TestEveryPageIsTwoStepsFromTheREADME(t *testing.T) {
	for _, door := range []string{readmePage, chinesePage} {
		reached := map[string]bool{door: true}
		from := []string{door}
		for range 2 {
			var next []string
			for _, page := range from {
				for _, link := range links(Page(t, page)) {
					name, _, relative := target(page, link)
					if relative && strings.HasSuffix(name, ".md") && !reached[name] {
						reached[name] = true
						next = append(next, name)
					}
				}
			}
			from = next
		}
		for _, page := range pages(t) {
			if !reached[page] && !strings.HasPrefix(page, ".github/") {
				t.Errorf("%s is more than two links away from %s", page, door)
			}
		}
	}
}

// A README is read at once, or not at all.
func TestREADMEIsShort(t *testing.T) {
	const most = 8 << 10
	for _, page := range []string{readmePage, chinesePage} {
		if n := len(Page(t, page)); n > most {
			t.Errorf("%s has %d bytes, and at most %d are meant", page, n, most)
		}
	}
}

// The translation has the same commands, code, links, tables and sections.
func TestBothREADMEsSayTheSame(t *testing.T) {
	for what, of := range map[string]func(text string) []string{
		"blocks of code": func(text string) []string { return fenced.FindAllString(text, -1) },
		"links": func(text string) []string {
			var all []string
			for _, link := range links(text) {
				name, _, _ := strings.Cut(link, "#")
				if english, ok := englishOf(name); ok {
					link = english
				} else if _, ok := chineseOf(t, name); ok {
					link = name // the headings of the translation have other anchors
				}
				if link != readmePage {
					all = append(all, link)
				}
			}
			return all
		},
		// The order of words is another one.
		"code": func(text string) []string {
			return slices.Sorted(slices.Values(inline.FindAllString(fenced.ReplaceAllString(text, ""), -1)))
		},
		"sections": func(text string) []string {
			var levels []string
			for _, m := range heading.FindAllString(fenced.ReplaceAllString(text, ""), -1) {
				level, _, _ := strings.Cut(m, " ")
				levels = append(levels, level)
			}
			return levels
		},
		"sizes of tables": func(text string) []string {
			var cells []string
			for _, row := range Rows(text) {
				cells = append(cells, fmt.Sprint(len(row)))
			}
			return cells
		},
		"figures": func(text string) []string {
			return slices.Sorted(slices.Values(figure.FindAllString(inline.ReplaceAllString(fenced.ReplaceAllString(text, ""), ""), -1)))
		},
	} {
		english, chinese := of(Page(t, readmePage)), of(Page(t, chinesePage))
		if len(english) == 0 {
			t.Errorf("%s has no %s", readmePage, what)
		}
		if !slices.Equal(english, chinese) {
			t.Errorf("the %s differ:\n%s: %q\n%s: %q", what, readmePage, english, chinesePage, chinese)
		}
	}
}

// The README shows how both commands end, and a NAD: all three are elsewhere in the tree.
func TestREADMEShowsWhatTheTreeHas(t *testing.T) {
	const demo = "demo passed: NICs and their RDMA devices were lent, carried jumbo frames, and were returned with their settings unchanged ("
	readme := Page(t, "README.md")
	_, nad, _ := strings.Cut(readme, "```yaml\n")
	nad, _, _ = strings.Cut(nad, "```")
	for _, c := range []struct{ shown, file, there string }{
		{demo, "scripts/demo.sh", strings.Replace(demo, ":", "$what:", 1)},
		{"tests: … passed, 0 failed, 0 skipped", "scripts/testreport/main.go", "tests: %d passed, %d failed, %d skipped"},
		{nad, "examples/roce-nads.yaml", nad},
		{nad, "docs/guide/host-device.md", nad},
	} {
		if c.shown == "" || !strings.Contains(readme, c.shown) {
			t.Errorf("README.md does not show %q", c.shown)
		}
		if !strings.Contains(Page(t, c.file), c.there) {
			t.Errorf("%s does not have %q, as README.md does", c.file, c.there)
		}
	}
}
