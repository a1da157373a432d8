package main

import (
	"bytes"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// reconciler runs "rail-agent ipam" with metrics until the test ends. It returns a function that
// scrapes the metrics. The function returns "" while the metrics are not served.
func reconciler(t *testing.T, kubeconfig string) func() string {
	t.Helper()
	l := listen(t)
	address := l.Addr().String()
	_ = l.Close()
	cmd := exec.Command(filepath.Join(testnet.Bin(t), "rail-agent"), "ipam", "--kubeconfig", kubeconfig, "--namespace", "kube-system",
		"--journal=false", "--metrics", address)
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("%v\n%s", err, log.Bytes())
		}
	})
	return func() string {
		answer, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			return ""
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body) // the test scrapes again
		return string(text)
	}
}

// TestOneReconcilerOfTheClusterTellsHowFullThePoolsAre checks that only the leading reconciler has
// metrics of pools, because it reads all pools anyway.
func TestOneReconcilerOfTheClusterTellsHowFullThePoolsAre(t *testing.T) {
	plane := controlplane.Start(t, controlplane.Options{})
	kubeconfig := plane.AdminKubeconfig()
	l := &lab{t: t, state: filepath.Join(scratch.Dir(t), "state")}
	l.whereabouts("ADD", testnet.OpenNodeFile, map[string]any{"range": "10.0.0.0/29", "kubernetes": map[string]any{"kubeconfig": kubeconfig}})
	l.whereabouts("ADD", testnet.OpenNodeFile, map[string]any{"range": "10.1.0.0/24", "block_size": 16, "kubernetes": map[string]any{"kubeconfig": kubeconfig}})

	// The agent has the Lease before the other begins.
	leader := l.start("--reconcile", "--kubeconfig", kubeconfig)
	await(t, "the pools", time.Minute, func() bool { n, _ := leader.metric("rail_cni_pools"); return n == 2 })
	_, text := leader.get("/metrics")
	for _, want := range []string{
		`rail_cni_pool_addresses{pool="10.0.0.0-29"} 6`, `rail_cni_pool_addresses_used{pool="10.0.0.0-29"} 1`, `rail_cni_pool_addresses{pool="10.1.0.0-24"} 254`,
		`rail_cni_pool_blocks{pool="10.1.0.0-24"} 16`, `rail_cni_pool_blocks_claimed{pool="10.1.0.0-24"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}

	follower := reconciler(t, kubeconfig)
	await(t, "the follower's metrics", time.Minute, func() bool { return strings.Contains(follower(), "process_resident_memory_bytes") })
	if text := follower(); strings.Contains(text, "rail_cni_pool") {
		t.Errorf("the follower has pools, too:\n%s", text)
	}
	if !need.Full() { // a follower looks at the Lease each minute
		return
	}
	leader.end(syscall.SIGTERM)
	await(t, "the follower to lead", 3*time.Minute, func() bool { return strings.Contains(follower(), "rail_cni_pools 2\n") })
}
