package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// sources parses the Go files below the directories, without tests.
func sources(t *testing.T, dirs ...string) []*ast.File {
	t.Helper()
	var files []*ast.File
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join(root(t), dir), func(name string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			files = append(files, file)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// text returns the value of a string literal, and false for another expression.
func text(e ast.Expr) (string, bool) {
	literal, ok := e.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(literal.Value)
	return s, err == nil
}

// typeName returns the last name of a composite literal's type: "Notice" of
// component.Notice.
func typeName(c *ast.CompositeLit) string {
	switch name := c.Type.(type) {
	case *ast.Ident:
		return name.Name
	case *ast.SelectorExpr:
		return name.Sel.Name
	}
	return ""
}

// compare fails for each key that only one of both has, or with another value.
func compare(t *testing.T, page string, documented, code map[string]string) {
	t.Helper()
	if len(code) == 0 {
		t.Fatalf("nothing is found in the code that %s describes", page)
	}
	for _, name := range slices.Sorted(maps.Keys(code)) {
		if have, ok := documented[name]; !ok {
			t.Errorf("%s lacks %s", page, name)
		} else if have != code[name] {
			t.Errorf("%s says of %s %q, the code says %q", page, name, have, code[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(documented)) {
		if _, ok := code[name]; !ok {
			t.Errorf("%s has %s, which the code has not", page, name)
		}
	}
}

// TestMetricsPageHasEveryMetric compares names, types and labels with the calls that
// make metrics. The RDMA counters, whose names the drivers choose, have a test in
// pkg/inventory/counters, and those of the process are of Prometheus' library.
func TestMetricsPageHasEveryMetric(t *testing.T) {
	const page = "docs/reference/metrics.md"
	documented := map[string]string{}
	for _, row := range Rows(Section(t, page, "The agent")) {
		if name := strings.Trim(row[0], "`"); !strings.HasPrefix(name, "process_") {
			documented[name] = row[1] + " " + strings.Join(Code(row[2]), " ")
		}
	}
	code := map[string]string{}
	for _, file := range sources(t, "pkg", "cmd") {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			function, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			switch function.Sel.Name {
			case "Gauge", "Counter", "Histogram":
			default:
				return true
			}
			name, ok := text(call.Args[0])
			if !ok {
				return true
			}
			kind := strings.ToLower(function.Sel.Name)
			var labels []string
			for i := 3; i < len(call.Args); i += 2 {
				label, ok := text(call.Args[i])
				if !ok {
					t.Fatalf("%s has a label whose name is no literal", name)
				}
				labels = append(labels, label)
			}
			code[name] = kind + " " + strings.Join(labels, " ")
			return true
		})
	}
	compare(t, page, documented, code)
}

// TestEventsPageHasEveryReason compares reasons and types with the notices of the
// agent, each of which becomes an Event.
func TestEventsPageHasEveryReason(t *testing.T) {
	const page = "docs/reference/events.md"
	documented := map[string]string{}
	for _, row := range Rows(Page(t, page)) {
		documented[strings.Trim(row[0], "`")] = row[1]
	}
	code := map[string]string{}
	for _, file := range sources(t, "pkg", "cmd") {
		ast.Inspect(file, func(n ast.Node) bool {
			notice, ok := n.(*ast.CompositeLit)
			if !ok || typeName(notice) != "Notice" {
				return true
			}
			fields := map[string]ast.Expr{}
			for i, e := range notice.Elts {
				if pair, ok := e.(*ast.KeyValueExpr); ok {
					if key, ok := pair.Key.(*ast.Ident); ok {
						fields[key.Name] = pair.Value
					}
					continue
				}
				fields[[]string{"Reason", "Summary", "Message", "Warning"}[i]] = e
			}
			reason, ok := text(fields["Reason"])
			if !ok {
				t.Fatalf("%s: a notice whose reason is no literal", file.Name)
			}
			kind := "Normal"
			if warning, ok := fields["Warning"].(*ast.Ident); ok && warning.Name == "true" {
				kind = "Warning"
			}
			code[reason] = kind
			return true
		})
	}
	compare(t, page, documented, code)
}
