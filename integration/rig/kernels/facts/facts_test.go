package facts

import (
	"slices"
	"testing"

	"github.com/rail-cni/rail-cni/docs"
)

func TestKernelsPageSaysWhatTheTestsFound(t *testing.T) {
	if got, want := Kernels(), []string{"5.10", "6.1", "6.12", "6.18"}; !slices.Equal(got, want) {
		t.Errorf("the tests ran on %v, and are to run on %v", got, want)
	}
	for _, linux := range Kernels() {
		known, _ := OfKernel(linux)
		if len(known) < len(Rows)-2 { // those with RDMA devices that move
			t.Errorf("%s.txt has only %d of %d facts: run make kernels-table", linux, len(known), len(Rows))
		}
		for key := range known {
			if !slices.ContainsFunc(Rows, func(r Row) bool { return r.Key == key }) {
				t.Errorf("%s.txt: no row is named %q", linux, key)
			}
		}
	}
	docs.Generated(t, "docs/reference/kernels.md", "kernels", Markdown())
}
