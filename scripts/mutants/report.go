package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// result is the part of gremlins' report that is read (internal/report/internal).
type result struct {
	Killed     int `json:"mutants_killed"`
	NotCovered int `json:"mutants_not_covered"`
	Files      []struct {
		Name      string `json:"file_name"`
		Mutations []struct {
			Type, Status string
			Line, Column int
		} `json:"mutations"`
	} `json:"files"`
}

// survivor is a mutant that no test kills.
type survivor struct {
	file, kind string // pkg/ledger/list.go, CONDITIONALS_NEGATION
	function   string // prefixOf
	code       string // its line, without the mutant
	line       int
	column     int
}

func (s survivor) String() string {
	return fmt.Sprintf("%s (%d:%d)", s.key(), s.line, s.column)
}

// key is the survivor in mutants.txt. It does not depend on the lines above the function.
func (s survivor) key() string {
	return strings.Join([]string{s.file, s.function, s.kind, s.code}, " ")
}

var function = regexp.MustCompile(`^func (?:\([^)]*\) )?(\w+)`)

// survivors returns the mutants that live, of the packages below a directory of the tree.
func (r result) survivors(tree, dir string) (list []survivor, err error) {
	for _, f := range r.Files {
		name := filepath.Join(dir, f.Name)
		data, err := os.ReadFile(filepath.Join(tree, name))
		if err != nil {
			return nil, err
		}
		lines := strings.Split(string(data), "\n")
		for _, m := range f.Mutations {
			if m.Status != "LIVED" && m.Status != "TIMED OUT" {
				continue
			}
			s := survivor{file: name, kind: m.Type, line: m.Line, column: m.Column}
			if m.Line > 0 && m.Line <= len(lines) {
				s.code = strings.TrimSpace(lines[m.Line-1])
				for _, line := range slices.Backward(lines[:m.Line]) {
					if found := function.FindStringSubmatch(line); found != nil {
						s.function = found[1]
						break
					}
				}
			}
			list = append(list, s)
		}
	}
	return list, nil
}

// judgments are the keys of the survivors that somebody has judged.
type judgments map[string]bool

// readJudged reads lines of "FILE FUNCTION KIND CODE", each below the comment that says why no test can
// kill it, or need not.
func readJudged(name string) (judgments, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	j := judgments{}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			j[line] = true
		}
	}
	return j, nil
}

// without returns the survivors that nobody has judged.
func (j judgments) without(list []survivor) (fresh []survivor) {
	for _, s := range list {
		if !j[s.key()] {
			fresh = append(fresh, s)
		}
	}
	return fresh
}
