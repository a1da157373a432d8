//go:build rig

package main

import (
	"os"
	"testing"
)

// TestRDMADemo is the second part as "make demo" shows it.
func TestRDMADemo(t *testing.T) {
	if err := demoRDMA(os.Getenv("RAIL_CNI_BIN")); err != nil {
		t.Fatal(err)
	}
}
