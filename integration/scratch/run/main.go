// Run makes a directory for the temporary files of a script. scripts/scratch.sh calls it.
//
//	run PID          removes what ended owners left, and makes and prints a directory of PID
//	run -remove DIR  removes such a directory
package main

import (
	"fmt"
	"os"
	"strconv"

	"github.com/rail-cni/rail-cni/integration/scratch"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "scratch:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 2 && args[0] == "-remove" {
		return scratch.Remove(args[1])
	}
	if len(args) != 1 {
		return fmt.Errorf("got %q; usage: run PID, or run -remove DIR", args)
	}
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("PID %q is no number", args[0])
	}
	if err := scratch.Sweep(); err != nil {
		fmt.Fprintln(os.Stderr, "scratch: something stays that ended tests left:", err)
	}
	dir, err := scratch.MkdirFor(pid)
	if err == nil {
		fmt.Println(dir)
	}
	return err
}
