package main

import (
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"
)

// stepsFile is the name of the file with the steps: a line of JSON, a stage, for each, by
// scripts/steps.sh.
const stepsFile = "steps"

// stage is one step of a run.
type stage struct {
	Name    string
	Start   int64 // Unix time
	Seconds float64
	CPU     float64 // seconds of all CPUs of the machine, also for other programs
	Ended   string  // "ok" or "FAILED"
}

// printSteps prints what each step took, and what it took before.
func printSteps(out io.Writer, dir, before string) error {
	steps, err := readLines[stage](filepath.Join(dir, stepsFile))
	if err != nil || len(steps) == 0 {
		return err
	}
	earlier, err := readLines[stage](filepath.Join(before, stepsFile))
	if err != nil {
		return err
	}
	was := map[string]stage{}
	for _, s := range earlier {
		was[s.Name] = s
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "step\t\tseconds\tCPU seconds\tbefore\tCPU before\t\n")
	total, totalBefore := stage{Name: "all"}, stage{}
	row := func(s, b stage, known bool) {
		fmt.Fprintf(table, "%s\t%s\t%.0f\t%.0f\t", s.Name, s.Ended, s.Seconds, s.CPU)
		if known {
			fmt.Fprintf(table, "%.0f\t%.0f\t", b.Seconds, b.CPU)
		} else {
			fmt.Fprint(table, "\t\t")
		}
		fmt.Fprintln(table)
	}
	for _, s := range steps {
		b, known := was[s.Name]
		row(s, b, known)
		total.Seconds, total.CPU = total.Seconds+s.Seconds, total.CPU+s.CPU
	}
	for _, b := range earlier {
		totalBefore.Seconds, totalBefore.CPU = totalBefore.Seconds+b.Seconds, totalBefore.CPU+b.CPU
	}
	row(total, totalBefore, len(earlier) > 0)
	return table.Flush()
}
