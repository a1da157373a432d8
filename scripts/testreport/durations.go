package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// keepDurations writes the file "durations.txt" in dir: a line "SECONDS PACKAGE" for each
// package, the longest first. Of a package that is there more than once the first counts.
func keepDurations(dir string, packages []timing) error {
	packages = slices.Clone(packages)
	slices.SortStableFunc(packages, func(a, b timing) int { return cmp.Compare(a.Name, b.Name) })
	packages = slices.CompactFunc(packages, func(a, b timing) bool { return a.Name == b.Name })
	slices.SortStableFunc(packages, func(a, b timing) int { return cmp.Compare(b.Seconds, a.Seconds) })
	var text strings.Builder
	for _, p := range packages {
		fmt.Fprintf(&text, "%.0f %s\n", p.Seconds, p.Name)
	}
	return os.WriteFile(filepath.Join(dir, "durations.txt"), []byte(text.String()), 0o644)
}

// longestFirst copies the lines of in to out, those that took longest first. The files are
// those of keepDurations, of which a later one comes before an earlier one, and a missing one
// is ignored. A line that is in none of them may take long: it comes first.
func longestFirst(in io.Reader, out io.Writer, files []string) error {
	seconds := map[string]float64{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for line := range strings.Lines(string(data)) {
			number, name, _ := strings.Cut(strings.TrimSpace(line), " ")
			if s, err := strconv.ParseFloat(number, 64); err == nil {
				seconds[name] = s
			}
		}
	}
	var lines []string
	scanner := bufio.NewScanner(in)
	for scanner.Scan() {
		lines = append(lines, scanner.Text())
	}
	if err := scanner.Err(); err != nil {
		return fmt.Errorf("reading the lines to sort: %w", err)
	}
	const unknown = 1e9
	secondsIn := func(line string) float64 {
		if s, ok := seconds[line]; ok {
			return s
		}
		return unknown
	}
	slices.SortStableFunc(lines, func(a, b string) int { return cmp.Compare(secondsIn(b), secondsIn(a)) })
	for _, line := range lines {
		fmt.Fprintln(out, line)
	}
	return nil
}
