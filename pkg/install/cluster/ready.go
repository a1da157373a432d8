package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/wait"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// Checker checks that rail-cni works on all nodes on which it is meant to run. It needs the rights
// to get the DaemonSets and the Deployment, to list the pods of their namespace, and to list the
// address pools.
type Checker struct {
	Client     *kube.Client
	Namespace  string        // the namespace of the DaemonSets and of the reconciler
	Agents     []string      // names of the DaemonSets; if empty, all DaemonSets of agents in the namespace
	Reconciler string        // name of the reconciler's Deployment, "" for none
	Pools      string        // namespace of the address pools
	Timeout    time.Duration // how long to wait

	Report func(line string) // called with each line about the progress
}

// Run waits until all checks succeed. Its error has the reasons of the last try.
func (c *Checker) Run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	var last error
	for {
		lines, err := c.try(ctx)
		if err == nil {
			for _, line := range lines {
				c.Report(line)
			}
			return nil
		}
		if ctx.Err() == nil || last == nil { // an error that comes from the end of ctx is not a useful reason
			last = err
		}
		if wait.For(ctx, pollPause) != nil {
			return fmt.Errorf("not ready after %v: %w", c.Timeout, last)
		}
	}
}

// try runs all checks once. It returns a line for each check that succeeded.
func (c *Checker) try(ctx context.Context) ([]string, error) {
	u := Uninstaller{Client: c.Client, Namespace: c.Namespace, Agents: c.Agents}
	var lines []string
	agents, err := u.find(ctx)
	if err != nil {
		return nil, err
	}
	if len(agents) == 0 || len(agents) < len(c.Agents) {
		return nil, fmt.Errorf("the namespace %s lacks a DaemonSet of the agents: has %d of %s", c.Namespace, len(agents), strings.Join(c.Agents, ", "))
	}
	var errs []error
	nodes := 0
	for _, d := range agents {
		nodes += d.Status.DesiredNumberScheduled
		line := fmt.Sprintf("DaemonSet %s: %d of %d nodes are ready", d.Metadata.Name, d.Status.NumberReady, d.Status.DesiredNumberScheduled)
		if d.done() {
			lines = append(lines, line)
			continue
		}
		errs = append(errs, errors.New(line))
	}
	switch {
	case len(errs) > 0:
		unready, err := u.unready(ctx)
		if len(unready) > 0 {
			errs = append(errs, fmt.Errorf("not ready: %s; the Events of these nodes and the logs of their agents have the reason",
				strings.Join(slices.Sorted(maps.Keys(unready)), ", ")))
		}
		errs = append(errs, err)
	case nodes == 0:
		errs = append(errs, errors.New("no node has an agent: compare the DaemonSet's nodeSelector and affinity with the labels of the nodes"))
	}
	for _, check := range []func(context.Context) (string, error){c.reconciler, c.pools} {
		line, err := check(ctx)
		if err != nil {
			errs = append(errs, err)
		} else if line != "" {
			lines = append(lines, line)
		}
	}
	return lines, errors.Join(errs...)
}

// reconciler checks that the Deployment of the reconciler is ready.
func (c *Checker) reconciler(ctx context.Context) (string, error) {
	if c.Reconciler == "" {
		return "", nil
	}
	text, err := c.Client.Get(ctx, kube.Resource{Group: "apps", Version: "v1", Plural: "deployments", Namespace: c.Namespace}, c.Reconciler)
	if err != nil {
		return "", err
	}
	var d struct {
		Metadata struct{ Generation int64 }
		Spec     struct{ Replicas int }
		Status   struct {
			ObservedGeneration             int64
			UpdatedReplicas, ReadyReplicas int
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return "", err
	}
	line := fmt.Sprintf("Deployment %s: %d of %d pods are ready", c.Reconciler, d.Status.ReadyReplicas, d.Spec.Replicas)
	s := d.Status
	if s.ObservedGeneration < d.Metadata.Generation || s.UpdatedReplicas != d.Spec.Replicas || s.ReadyReplicas != d.Spec.Replicas {
		return "", errors.New(line)
	}
	return line, nil
}

// pools checks that the API server can list address pools.
func (c *Checker) pools(ctx context.Context) (string, error) {
	count := 0
	_, err := c.Client.List(ctx, api.Pools(c.Pools), kube.ListOptions{}, func([]byte) error {
		count++
		return nil
	})
	return fmt.Sprintf("address pools in %s: %d", c.Pools, count), err
}
