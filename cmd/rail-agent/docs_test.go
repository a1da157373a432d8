package main

import (
	"bytes"
	"io"
	"regexp"
	"testing"

	"github.com/rail-cni/rail-cni/docs"
)

func TestCLIPageHasTheHelpOfRailAgent(t *testing.T) {
	docs.Generated(t, "docs/reference/cli.md", "rail-agent", docs.Commands("rail-agent", func(args ...string) string {
		var out bytes.Buffer
		root := newRoot(io.Discard)
		root.SetOut(&out)
		root.SetArgs(args)
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}))
}

// TestPagesNameRealFlagsOfRailAgent checks that the pages about the agent name only flags that
// exist.
func TestPagesNameRealFlagsOfRailAgent(t *testing.T) {
	root := newRoot(io.Discard)
	flag := regexp.MustCompile("`(--[a-z-]+)")
	for _, page := range []string{"docs/guide/agent.md", "docs/reference/events.md"} {
		found := flag.FindAllStringSubmatch(docs.Page(t, page), -1)
		if len(found) == 0 {
			t.Errorf("%s names no flag", page)
		}
		for _, m := range found {
			known := root.PersistentFlags().Lookup(m[1][2:]) != nil
			for _, c := range root.Commands() {
				known = known || c.Flags().Lookup(m[1][2:]) != nil
			}
			if !known {
				t.Errorf("%s: no command of rail-agent has the flag %s", page, m[1])
			}
		}
	}
}
