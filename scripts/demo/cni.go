package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rail-cni/rail-cni/examples"
)

// confDir is cnitool's directory of networks, like a runtime's /etc/cni/net.d.
const confDir = workDir + "/net.d"

// writeConfs writes the config of each NAD to a file of its own, byte for byte.
func writeConfs(networks []examples.Network) error {
	for _, n := range networks {
		if err := os.WriteFile(filepath.Join(confDir, n.NAD+".conf"), n.Config, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// result is a CNI result of versions 0.3.0 to 0.4.0.
type result struct {
	Interfaces []struct{ Name, Sandbox string }
	IPs        []struct{ Address, Gateway string }
}

// cni runs the built binaries.
type cni struct{ bin string }

func (c cni) tool(verb, network, ifname string, p pod) (string, error) {
	env := []string{"CNI_PATH=" + c.bin, "NETCONFPATH=" + confDir, "CNI_IFNAME=" + ifname}
	return runEnv(env, inNetns(p.node, filepath.Join(c.bin, "cnitool"), verb, network, p.path())...)
}

// add attaches a network to a pod, as the runtime on the pod's node does.
func (c cni) add(network, ifname string, p pod) (*result, error) {
	out, err := c.tool("add", network, ifname, p)
	if err != nil {
		return nil, err
	}
	r := &result{}
	if err := json.Unmarshal([]byte(out), r); err != nil {
		return nil, fmt.Errorf("result of %s for %s: %w", network, p.name, err)
	}
	return r, nil
}

func (c cni) del(network, ifname string, p pod) error {
	_, err := c.tool("del", network, ifname, p)
	return err
}

// railctl runs railctl on a node.
func (c cni) railctl(node string, args ...string) (string, error) {
	return run(inNetns(node, append([]string{filepath.Join(c.bin, "railctl")}, args...)...)...)
}

// attached is an attachment as railctl shows it.
type attached struct{ PodNetns, State string }

// attachments returns the attachments that railctl knows on a node.
func (c cni) attachments(node string) ([]attached, error) {
	out, err := c.railctl(node, "show", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list []attached
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("railctl show -o json: %w", err)
	}
	return list, nil
}

// awaitGone waits until the kernel has ended a pod's namespace: recently closed
// sockets keep it for a moment.
func (c cni) awaitGone(p pod) error {
	gone := attached{PodNetns: p.path(), State: "gone"}
	for deadline := time.Now().Add(settleTime); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		list, err := c.attachments(p.node)
		if err != nil || slices.Contains(list, gone) {
			return err
		}
	}
	return fmt.Errorf("railctl does not notice within %s that the netns of %s is gone", settleTime, p.name)
}
