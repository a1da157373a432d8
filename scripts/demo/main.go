package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/examples"
)

func main() {
	bin := flag.String("bin", "bin", "directory of the built binaries")
	withRDMA := flag.Bool("rdma", false, "show RDMA, in the virtual machine of integration/rig")
	nics := flag.String("nics", "", "show RDMA on these NICs of this host: interfaces or RDMA devices, separated by blanks")
	flag.Parse()
	part, passed := demo, passedLinks
	switch {
	case *nics != "":
		part, passed = func(bin string) error { return demoHost(bin, strings.Fields(*nics)) }, passedHost
	case *withRDMA:
		part, passed = demoRDMA, passedRDMA
	case os.Getenv(insideVar) == "":
		os.Exit(exitCode(runInside(os.Args[1:])))
	}
	began := time.Now()
	if err := part(*bin); err != nil {
		fmt.Printf("\ndemo FAILED: %v\n", err)
		os.Exit(1)
	}
	fmt.Printf("\n%s (%.1f s)\n", passed(), time.Since(began).Seconds())
}

// passedLinks returns the summary of the first part.
func passedLinks() string {
	return fmt.Sprintf("part 1 passed: %d rails and a shared NIC were lent to five pods, carried jumbo frames, and were returned with their settings unchanged", len(rails))
}

// passedHost returns the summary of the second part on the host's own NICs.
func passedHost() string {
	return "part 2 passed: the host's NICs were lent to two pods with their RDMA, and were returned with their settings unchanged"
}

// exitCode returns the exit code of the inner demo, which has printed its own
// errors.
func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return exit.ExitCode()
	}
	fmt.Fprintf(os.Stderr, "demo FAILED: %v\n", err)
	return 1
}

// nodes are the two nodes of the demo: namespaces that represent host netns.
var nodes = []string{"node1", "node2"}

func demo(binDir string) error {
	fmt.Println("rail-cni demo, part 1: two nodes with eight rails each, in namespaces of their own; the machine is not touched.")
	bin, err := furnish(binDir)
	if err != nil {
		return err
	}
	c := cni{bin: bin}
	chapter("Two nodes, joined rail by rail")
	if err := makeNodes(); err != nil {
		return err
	}
	printLine("node1, node2: %s … %s and %s (MTU %d), uplink %s with the default route", rails[0].name, rails[len(rails)-1].name, shared, jumbo, uplink)
	printLine("as administrators leave them: altnames, ARP sysctls, addresses, routes, an alias, promiscuous mode")
	err = lendRails(c, "The eight NADs of examples/roce-nads.yaml, unchanged, for the two pods of examples/roce-pods.yaml", func(pods []pod) error {
		if err := pingRails(pods); err != nil {
			return err
		}
		chapter("What the node knows, and what it refuses")
		if err := showNode(c, pods); err != nil {
			return err
		}
		return refusals(c, pods[0])
	})
	if err != nil {
		return err
	}
	return shareNIC(c)
}

// attachRails attaches the eight networks of its annotation to a pod.
func attachRails(c cni, p pod, networks []examples.Network) error {
	began := time.Now()
	for i, network := range networks {
		ifname := fmt.Sprintf("net%d", i+1)
		r, err := c.add(network.Name, ifname, p)
		if err != nil {
			return fmt.Errorf("ADD of %s to %s: %w", network.NAD, p.name, err)
		}
		gateway := fmt.Sprintf("172.31.%d.1", i+1)
		if err := railOf(i, p, network).checkResult(r, gateway, p.path()); err != nil {
			return fmt.Errorf("%s, %s: %w", p.name, network.NAD, err)
		}
	}
	took := time.Since(began)
	list, err := interfaces(p.name)
	if err != nil {
		return err
	}
	for i, network := range networks {
		if err := railOf(i, p, network).check(list); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	printLine("")
	printLine("%s on %s, %d NICs in %.2f s:", p.name, p.node, len(networks), took.Seconds())
	printInterfaces(list)
	return checkAway(p.node)
}

// railOf returns the expected interface i+1 of a pod.
func railOf(i int, p pod, n examples.Network) expected {
	e := expected{
		ifname:    fmt.Sprintf("net%d", i+1),
		address:   fmt.Sprintf("172.31.%d.%d/24", i+1, p.host),
		broadcast: fmt.Sprintf("172.31.%d.255", i+1),
		altname:   "none: the NAD names no rail of the demo",
	}
	for _, r := range rails {
		if r.name == deviceOf(n) {
			e.altname = r.altname
		}
	}
	return e
}

// deviceOf returns the NIC that a network of host-device names.
func deviceOf(n examples.Network) string {
	var conf struct{ Device string }
	_ = json.Unmarshal(n.Config, &conf) // the plugin reports the error
	return conf.Device
}

var chapters int

// chapter begins a part of the story.
func chapter(title string) {
	chapters++
	fmt.Printf("\n%d. %s\n", chapters, title)
}

// printLine prints a line of the story.
func printLine(format string, args ...any) {
	fmt.Println(strings.TrimRight("   "+fmt.Sprintf(format, args...), " "))
}

// quote prints the output of a command as part of the story.
func quote(command, output string) {
	printLine("$ %s", command)
	for line := range strings.SplitSeq(strings.TrimRight(output, "\n"), "\n") {
		printLine("%s", line)
	}
}

// printInterfaces prints the interfaces like `ip -br address`, with the MTU and
// the altname.
func printInterfaces(list []seen) {
	printLine("  %-6s %-5s %-5s %-18s %-16s %s", "", "STATE", "MTU", "ADDRESS", "BROADCAST", "ALTNAME")
	for _, s := range list {
		for _, a := range s.ipv4() {
			if s.Ifname == "lo" {
				continue
			}
			printLine("  %-6s %-5s %-5d %-18s %-16s %s", s.Ifname, s.Operstate, s.Mtu,
				fmt.Sprintf("%s/%d", a.Local, a.Prefixlen), a.Broadcast, strings.Join(s.Altnames, " "))
		}
	}
}
