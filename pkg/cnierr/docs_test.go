package cnierr_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"testing"

	"github.com/rail-cni/rail-cni/docs"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
)

// codes has the codes by their names. If a constant is missing here, TestErrorsPageHasEveryCode
// fails.
var codes = map[string]uint{
	"UnknownContainer": cnierr.UnknownContainer,
	"InvalidEnv":       cnierr.InvalidEnv,
	"IO":               cnierr.IO,
	"Decode":           cnierr.Decode,
	"InvalidConfig":    cnierr.InvalidConfig,
	"InvalidNetns":     cnierr.InvalidNetns,
	"TryAgain":         cnierr.TryAgain,
	"NotAvailable":     cnierr.NotAvailable,
	"Limited":          cnierr.Limited,
	"Internal":         cnierr.Internal,
	"NICNotFound":      cnierr.NICNotFound,
	"NICProtected":     cnierr.NICProtected,
	"NICLent":          cnierr.NICLent,
	"NameTaken":        cnierr.NameTaken,
	"NotReturned":      cnierr.NotReturned,
	"IPAM":             cnierr.IPAM,
	"BadRecord":        cnierr.BadRecord,
	"Mismatch":         cnierr.Mismatch,
	"Kernel":           cnierr.Kernel,
}

var codeRow = regexp.MustCompile(`(?m)^\| (\d+) \| (\w+) \| .+ \|$`)

func TestErrorsPageHasEveryCode(t *testing.T) {
	const page = "docs/reference/errors.md"
	documented := map[string]string{}
	for _, row := range codeRow.FindAllStringSubmatch(docs.Page(t, page), -1) {
		documented[row[2]] = row[1]
	}
	for name, code := range codes {
		if have := documented[name]; have != fmt.Sprint(code) {
			t.Errorf("%s: the code of %s is %q, not %d", page, name, have, code)
		}
	}
	for name := range documented {
		if _, ok := codes[name]; !ok {
			t.Errorf("%s: the code has no %s", page, name)
		}
	}
	for _, name := range constants(t) {
		if _, ok := codes[name]; !ok {
			t.Errorf("the code %s is not in this test's table, nor perhaps in %s", name, page)
		}
	}
}

// constants returns the names of the package's exported constants.
func constants(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "cnierr.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	ast.Inspect(file, func(n ast.Node) bool {
		d, ok := n.(*ast.GenDecl)
		if !ok || d.Tok != token.CONST {
			return true
		}
		for _, s := range d.Specs {
			if v, ok := s.(*ast.ValueSpec); ok {
				for _, id := range v.Names {
					if id.IsExported() {
						names = append(names, id.Name)
					}
				}
			}
		}
		return true
	})
	if len(names) == 0 {
		t.Fatal("cnierr.go has no constants")
	}
	return names
}
