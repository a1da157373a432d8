// Command image writes the image of the job in examples/job/allreduce.yaml, as an archive to load
// on nodes. "make cluster CHART=yes JOB=yes" runs it.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/rail-cni/rail-cni/integration/pages"
)

func main() {
	tree := flag.String("tree", "", "directory of Debian's packages, unpacked")
	busybox := flag.String("busybox", "", "path of a static busybox")
	out := flag.String("out", "", "archive to write")
	flag.Parse()
	if err := pages.Image(*tree, *busybox, *out); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}
