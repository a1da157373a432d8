package site

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/net/html"

	"github.com/rail-cni/rail-cni/integration/browser"
	"github.com/rail-cni/rail-cni/integration/need"
)

const top = "../.."

// read decodes a file of YAML into a value.
func read(t *testing.T, file string, to any) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, to); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// section is one of data/menu.yaml.
type section struct {
	Name  map[string]string
	Pages []string
}

func menu(t *testing.T) (sections []section) {
	t.Helper()
	read(t, "data/menu.yaml", &sections)
	return sections
}

// TestMenuHasEveryPage: each page of the site is in one section, and each section has pages.
func TestMenuHasEveryPage(t *testing.T) {
	var config struct {
		Module struct {
			Mounts []struct{ Source, Target, Lang string }
		}
	}
	read(t, "hugo.yaml", &config)
	root, err := filepath.Abs(top)
	if err != nil {
		t.Fatal(err)
	}
	var pages []string
	for _, mount := range config.Module.Mounts {
		if mount.Lang != "en" {
			continue
		}
		err := filepath.WalkDir(filepath.Join(root, "docs/site", mount.Source), func(name string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && strings.HasSuffix(name, ".md") {
				relative, err := filepath.Rel(root, name)
				pages = append(pages, filepath.ToSlash(relative))
				return err
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(pages) < 50 {
		t.Fatalf("only %d pages: %v", len(pages), pages)
	}
	in := map[string]string{}
	for _, s := range menu(t) {
		if s.Name["en"] == "" || s.Name["zh"] == "" || len(s.Pages) == 0 {
			t.Errorf("the section %v has no name in a language, or no pages", s)
		}
		for _, page := range s.Pages {
			if in[page] != "" {
				t.Errorf("%s is in %q and in %q", page, in[page], s.Name["en"])
			}
			in[page] = s.Name["en"]
			if !slices.Contains(pages, page) {
				t.Errorf("the menu has %s, which is no page of the site", page)
			}
		}
	}
	for _, page := range pages {
		if in[page] == "" {
			t.Errorf("%s is in no section: put it into docs/site/data/menu.yaml", page)
		}
	}
}

// page is a parsed file of the built site.
type page struct {
	title    string
	ids      map[string]int
	headings int
	links    []string // href and src, without those of the menu of versions
	alts     []bool   // of the pictures: whether each has a text
}

func parse(t *testing.T, file string) *page {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	root, err := html.Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	p := &page{ids: map[string]int{}}
	for n := range root.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		attributes := map[string]string{}
		for _, a := range n.Attr {
			attributes[a.Key] = a.Val
		}
		switch n.Data {
		case "title":
			p.title = n.FirstChild.Data
		case "h1":
			p.headings++
		case "img":
			p.alts = append(p.alts, attributes["alt"] != "")
		}
		if id := attributes["id"]; id != "" {
			p.ids[id]++
		}
		if _, other := attributes["data-version"]; other {
			continue
		}
		for _, key := range []string{"href", "src"} {
			if link, ok := attributes[key]; ok {
				p.links = append(p.links, link)
			}
		}
	}
	return p
}

// built is the site in a directory.
type built struct {
	dir   string
	pages map[string]*page // by their paths in the site
}

func build(t *testing.T) *built {
	t.Helper()
	need.NoError(t, need.Built(filepath.Join(top, "bin/tools/hugo/usr/bin/hugo"), "docs"))
	b := &built{filepath.Join(t.TempDir(), "site"), map[string]*page{}}
	cmd := exec.Command("scripts/docs.sh", b.dir, "devel")
	cmd.Dir = top
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "WARN") {
		t.Fatalf("%v\n%s", err, out)
	}
	err := filepath.WalkDir(b.dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(name) != ".html" {
			return err
		}
		relative, err := filepath.Rel(b.dir, name)
		b.pages[filepath.ToSlash(relative)] = parse(t, name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// leads returns why a link on a page leads nowhere, or "". Other sites are not asked.
func (b *built) leads(from, link string) string {
	u, err := url.Parse(link)
	switch {
	case err != nil:
		return err.Error()
	case u.IsAbs():
		if u.Scheme != "https" && u.Scheme != "mailto" || u.Scheme == "https" && !strings.Contains(u.Host, ".") {
			return "is no address of https"
		}
		return ""
	case u.Host != "" || strings.HasPrefix(u.Path, "/"):
		return "depends on where the site is"
	}
	name := path.Join(path.Dir(from), u.Path)
	if u.Path == "" {
		name = from
	}
	to, isPage := b.pages[name]
	if info, err := os.Stat(filepath.Join(b.dir, name)); err != nil || info.IsDir() {
		return "leads to no file"
	}
	if u.Fragment != "" && (!isPage || to.ids[u.Fragment] == 0) {
		return "leads to no heading"
	}
	return ""
}

func TestSite(t *testing.T) {
	site := build(t)
	t.Run("links", func(t *testing.T) {
		links := 0
		for name, p := range site.pages {
			if p.title == "" || p.headings != 1 {
				t.Errorf("%s has the title %q and %d main headings", name, p.title, p.headings)
			}
			if slices.Contains(p.alts, false) {
				t.Errorf("%s: a picture has no text", name)
			}
			for id, n := range p.ids {
				if n > 1 {
					t.Errorf("%s has the anchor %s %d times", name, id, n)
				}
			}
			for _, link := range p.links {
				links++
				if why := site.leads(name, link); why != "" {
					t.Errorf("%s: the link %s %s", name, link, why)
				}
			}
		}
		if len(site.pages) < 55 || links < 5000 {
			t.Errorf("only %d links on %d pages", links, len(site.pages))
		}
	})
	t.Run("what is wrong is noticed", func(t *testing.T) {
		for link, want := range map[string]string{
			"docs/guide/nothing.html":           "leads to no file",
			"docs/guide":                        "leads to no file",
			"docs/guide/install.html#nothing":   "leads to no heading",
			"#nothing":                          "leads to no heading",
			"/docs/guide/install.html":          "depends on where the site is",
			"//other.example/x":                 "depends on where the site is",
			"http://other.example":              "is no address of https",
			"https:docs":                        "is no address of https",
			"docs/guide/install.html#uninstall": "",
		} {
			if got := site.leads("index.html", link); got != want {
				t.Errorf("%s: %q, want %q", link, got, want)
			}
		}
	})
	t.Run("index of the search", site.testIndex)
	t.Run("in a browser", site.testBrowser)
}

// testIndex: each entry leads to a section, and each page has entries with text.
func (b *built) testIndex(t *testing.T) {
	for _, dir := range []string{"", "zh"} {
		data, err := os.ReadFile(filepath.Join(b.dir, dir, "search.js"))
		if err != nil {
			t.Fatal(err)
		}
		call := strings.TrimSpace(string(data))
		var rows []struct{ Page, URL, Heading, Text string }
		if err := json.Unmarshal([]byte(strings.TrimSuffix(strings.TrimPrefix(call, "searchIndex("), ")")), &rows); err != nil {
			t.Fatal(err)
		}
		text := map[string]int{}
		for _, row := range rows {
			if why := b.leads("index.html", row.URL); why != "" {
				t.Errorf("%s %s", row.URL, why)
			}
			name, _, _ := strings.Cut(row.URL, "#")
			text[name] += len(row.Text)
		}
		for _, s := range menu(t) {
			for _, page := range s.Pages {
				name := strings.TrimSuffix(page, ".md") + ".html"
				if page == "README.md" {
					name = "index.html"
				}
				if text[name]+text["zh/"+name] < 300 {
					t.Errorf("%s/search.js has %d bytes of %s", dir, text[name], name)
				}
			}
		}
	}
}

// symptoms are what people search, and the pages of which one must be among the first three.
var symptoms = map[string][]string{
	"pod stuck in ContainerCreating":          {"troubleshooting", "runbook"},
	"NIC not back after pod deletion":         {"troubleshooting", "runbook"},
	"pod started without its interface":       {"troubleshooting", "runbook"},
	"no free addresses":                       {"troubleshooting", "runbook"},
	"slow all-reduce":                         {"doctor", "runbook"},
	"RailNICsNotReturned":                     {"runbook"},
	"NET/Socket":                              {"runbook"},
	"how to uninstall":                        {"install", "cli", "README"},
	"rail_cni_nri_refused_total":              {"metrics"},
	"sriov vlan":                              {"sriov"},
	"how many GID entries does a macvlan use": {"macvlan"},
}

func (b *built) testBrowser(t *testing.T) {
	chrome := browser.New(t)
	address := func(name string) string { return (&url.URL{Scheme: "file", Path: filepath.Join(b.dir, name)}).String() }
	width := func(pixels int) {
		chrome.Call("Emulation.setDeviceMetricsOverride", map[string]any{"width": pixels, "height": 844, "deviceScaleFactor": 1, "mobile": pixels < 600})
	}
	picture := func(name string) { // it takes a second for a long page
		if os.Getenv("RAIL_CNI_SCREENSHOTS") != "" {
			chrome.Screenshot(name)
		}
	}
	width(390)
	names := make([]string, 0, len(b.pages))
	for name := range b.pages {
		names = append(names, name)
	}
	slices.Sort(names)
	began := time.Now()
	for _, name := range names {
		for _, event := range chrome.Open(address(name)) {
			if method := event["method"]; method == "Runtime.exceptionThrown" || method == "Log.entryAdded" {
				t.Errorf("%s: %v", name, event)
			}
		}
		if over := chrome.Evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"); over != 0.0 {
			t.Errorf("%s is %v px wider than a phone", name, over)
		}
		picture(fmt.Sprintf("site-%s-390", strings.ReplaceAll(name, "/", "-")))
	}
	t.Logf("%d pages in %s", len(names), time.Since(began))
	chrome.Open(address("index.html"))
	background := "getComputedStyle(document.body).backgroundColor"
	light := chrome.Evaluate(background)
	chrome.Evaluate("document.getElementById('site-theme').click()")
	if dark := chrome.Evaluate(background); dark == light {
		t.Errorf("the button of the theme changes nothing: %v", dark)
	}
	picture("site-dark")
	chrome.Evaluate("document.getElementById('site-menu').click()")
	picture("site-menu")
	width(1280)
	search := func(question string, want []string) {
		text, err := json.Marshal(question)
		if err != nil {
			t.Fatal(err)
		}
		list, _ := chrome.Evaluate(fmt.Sprintf(`new Promise((found) => {
			new MutationObserver(found).observe(document.getElementById("site-results"), {childList: true});
			const input = document.getElementById("site-search");
			input.value = %s;
			input.dispatchEvent(new Event("input"));
		}).then(() => [...document.querySelectorAll("#site-results a")].map((a) => a.href).join(" "))`, text)).(string)
		links := strings.Fields(list)
		if !slices.ContainsFunc(links[:min(3, len(links))], func(link string) bool {
			return slices.ContainsFunc(want, func(page string) bool { return strings.Contains(link, "/"+page+".html") })
		}) {
			t.Errorf("%q finds %q, and none of %q is among the first three", question, links, want)
		}
	}
	chrome.Open(address("docs/reference/kubernetes.html"))
	for question, want := range symptoms {
		search(question, want)
	}
	picture("site-search")
	chrome.Open(address("zh/index.html"))
	search("没有可用地址", []string{"zh/index", "zh/docs/guide/troubleshooting"})
	picture("site-search-zh")
}
