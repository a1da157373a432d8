package failure_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// nested returns the positions of calls of WithCure whose first argument makes the error. A linter
// such as forbidigo, which sees only names, cannot find such calls.
func nested(t *testing.T, name string, source []byte) (found []string) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	called := func(e ast.Expr) (*ast.CallExpr, string) {
		call, ok := e.(*ast.CallExpr)
		if !ok {
			return nil, ""
		}
		switch f := call.Fun.(type) {
		case *ast.SelectorExpr:
			if of, ok := f.X.(*ast.Ident); ok {
				return call, of.Name + "." + f.Sel.Name
			}
		case *ast.Ident:
			return call, file.Name.Name + "." + f.Name
		}
		return nil, ""
	}
	ast.Inspect(file, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		if !ok {
			return true
		}
		if cured, of := called(e); of == "failure.WithCure" && len(cured.Args) > 0 {
			if _, of := called(cured.Args[0]); slices.Contains([]string{"failure.New", "failure.Wrap", "fmt.Errorf"}, of) {
				found = append(found, set.Position(e.Pos()).String())
			}
		}
		return true
	})
	return found
}

// TestErrorsReadFromLeftToRight checks that the whole tree uses failure.New(…).Cure(…) and
// failure.From(…).Cure(…).
func TestErrorsReadFromLeftToRight(t *testing.T) {
	t.Parallel()
	read := 0
	err := filepath.WalkDir("../..", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || name == "../../bin") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		source, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		read++
		if !bytes.Contains(source, []byte("WithCure(")) {
			return nil
		}
		for _, place := range nested(t, name, source) {
			t.Errorf("%s: write failure.New(…).Cure(…) or failure.From(err, …).Cure(…); WithCure is for an error that another function made", place)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if read < 100 {
		t.Errorf("only %d files are read", read)
	}
}

func TestNestedFormsAreSeen(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, pkg, expression string
		want                  int
	}{
		{"New", "a", `failure.WithCure(failure.New(failure.IO, "x"), "y")`, 1},
		{"Wrap", "a", `failure.WithCure(failure.Wrap(err, failure.IO, "x"), "y")`, 1},
		{"over lines", "a", "failure.WithCure(\n\t\tfailure.New(failure.IO, \"x\"),\n\t\t\"y\")", 1},
		{"without a kind", "a", `failure.WithCure(fmt.Errorf("x: %w", err), "y")`, 1},
		{"in another call", "a", `errors.Join(err, failure.WithCure(failure.New(failure.IO, "x"), "y"))`, 1},
		{"one in the other", "a", `failure.WithCure(failure.Wrap(failure.WithCure(failure.New(failure.IO, "x"), "y"), failure.IO, "z"), "y")`, 2},
		{"in the package itself", "failure", `WithCure(New(IO, "x"), "y")`, 1},
		{"left to right", "a", `failure.New(failure.IO, "x").Cure("y")`, 0},
		{"of another function", "a", `failure.WithCure(open(), "y")`, 0},
		{"of a variable", "a", `failure.WithCure(err, "y")`, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			source := "package " + c.pkg + "\n\nfunc f(err error) error {\n\treturn " + c.expression + "\n}\n"
			if found := nested(t, "x.go", []byte(source)); len(found) != c.want {
				t.Errorf("found at %q, want %d", found, c.want)
			}
		})
	}
}
