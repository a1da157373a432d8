package cnierr

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

var errCause = fmt.Errorf("open x: %w", fs.ErrNotExist)

func TestCode(t *testing.T) {
	theirs := types.NewError(types.ErrTryAgainLater, "busy", "details")
	for _, c := range []struct {
		name string
		err  error
		want uint
	}{
		{"ours", failure.New(failure.NICLent, "x"), NICLent},
		{"with a cure", failure.New(failure.NICLent, "x").Cure("wait"), NICLent},
		{"wrapped in Go's way", fmt.Errorf("a: %w", failure.New(failure.NICLent, "x")), NICLent},
		{"the outer of two", failure.Wrap(failure.New(failure.NICLent, "x"), failure.NotReturned, "y"), NotReturned},
		{"joined", errors.Join(errCause, failure.New(failure.NICLent, "x")), NICLent},
		{"theirs", theirs, TryAgain},
		{"theirs, wrapped", fmt.Errorf("ipam: %w", theirs), TryAgain},
		{"theirs inside ours", failure.Wrap(theirs, failure.IPAM, "whereabouts"), IPAM},
		{"none", errCause, Internal},
		{"theirs without one", &types.Error{Msg: "x"}, Internal},
		{"theirs with a cure", failure.WithCure(theirs, "wait"), TryAgain},
	} {
		if got := Code(c.err); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// kindsOfFailure returns the names of the kinds that package failure declares.
func kindsOfFailure(t *testing.T) []failure.Kind {
	file, err := parser.ParseFile(token.NewFileSet(), "../failure/failure.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var found []failure.Kind
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			if of, ok := spec.Type.(*ast.Ident); ok && of.Name == "Kind" {
				value, ok := spec.Values[0].(*ast.BasicLit)
				if !ok {
					t.Fatalf("kind %s is not a literal", spec.Names[0])
				}
				text, err := strconv.Unquote(value.Value)
				if err != nil {
					t.Fatal(err)
				}
				found = append(found, failure.Kind(text))
			}
		}
		return true
	})
	return found
}

func TestEveryKindHasACodeOfItsOwn(t *testing.T) {
	kinds := kindsOfFailure(t)
	if len(kinds) != len(codes) {
		t.Errorf("%d kinds, %d codes", len(kinds), len(codes))
	}
	for _, kind := range kinds {
		if codes[kind] == 0 || KindOf(codes[kind]) != kind {
			t.Errorf("kind %q has code %d, which is kind %q's", kind, codes[kind], KindOf(codes[kind]))
		}
	}
	if k := KindOf(9999); k != failure.Internal {
		t.Errorf("an unknown code is %q", k)
	}
}

// TestToCNIKeepsTheWholeText: skel looks for a *types.Error at any depth and prints only its text,
// so the texts that were wrapped around it would be lost.
func TestToCNIKeepsTheWholeText(t *testing.T) {
	if ToCNI(nil) != nil {
		t.Error("no error became one")
	}
	inner := types.NewError(types.ErrTryAgainLater, "no address is left", "10.0.0.0/30")
	for _, c := range []struct {
		err  error
		code uint
		text string
	}{
		{
			failure.From(inner, failure.IPAM, "attachment c1/net1").Cure("make the range larger"), IPAM,
			"attachment c1/net1: no address is left; 10.0.0.0/30; make the range larger",
		},
		{fmt.Errorf("attachment c1/net1: %w", inner), TryAgain, "attachment c1/net1: no address is left; 10.0.0.0/30"},
		{errors.Join(failure.New(failure.NotReturned, "one"), errCause), NotReturned, "one\nopen x: file does not exist"},
		{errCause, Internal, "open x: file does not exist"},
	} {
		var got *types.Error
		if !errors.As(ToCNI(c.err), &got) {
			t.Errorf("%v is not what skel prints", c.err)
			continue
		}
		if got.Code != c.code || got.Msg != c.text || got.Details != "" {
			t.Errorf("%+v, want code %d and %q", got, c.code, c.text)
		}
		printed, err := json.Marshal(got)
		if err != nil || !json.Valid(printed) {
			t.Errorf("printed as %s, %v", printed, err)
		}
	}
}

// TestCodesAreNotTheSpecifications: codes below 100 belong to the specification, and a runtime acts
// on some of them.
func TestCodesAreNotTheSpecifications(t *testing.T) {
	seen := map[uint]bool{}
	for _, code := range []uint{NICNotFound, NICProtected, NICLent, NameTaken, NotReturned, IPAM, BadRecord, Mismatch, Kernel} {
		if code < 100 || code == Internal || seen[code] {
			t.Errorf("code %d is taken", code)
		}
		seen[code] = true
	}
}

func TestToCNICutsWhatNobodyCanRead(t *testing.T) {
	var got *types.Error
	err := failure.New(failure.InvalidConfig, "device %q", strings.Repeat("ö", 1<<20)).Cure("the cure")
	if !errors.As(ToCNI(err), &got) || len(got.Msg) > 20<<10 || !utf8.ValidString(got.Msg) ||
		!strings.HasPrefix(got.Msg, "device \"ö") || !strings.HasSuffix(got.Msg, "; the cure") {
		t.Errorf("%d bytes: %.50q", len(got.Msg), got.Msg)
	}
}
