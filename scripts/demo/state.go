package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// state holds all facts about a network namespace from ip(8) and the sysctls,
// as sorted lines.
type state []string

// volatile are the facts that change by themselves: counters, and the kernel's
// numbers of interfaces.
var volatile = []string{"ifindex", "netdev_index", "link_index", "stats", "stats64"}

// ticking matches remaining lifetimes in JSON; infinite ones have ten digits.
var ticking = regexp.MustCompile(`,?"(valid_life_time|preferred_life_time|expires)":\d{1,9}\b`)

// queuePair matches the link-layer address of an InfiniBand interface, which has the number of a queue pair:
// another one if the kernel makes the interface anew, as it does when the RDMA device moves.
var queuePair = regexp.MustCompile(`"([0-9a-f]{2})(?::[0-9a-f]{2}){3}((?::[0-9a-f]{2}){16})"`)

// compared names the content of a [state].
var compared = "links, addresses, routes, rules and sysctls, without counters, ifindex and numbers of queue pairs"

// stateOf returns the state of a namespace after it has settled.
func stateOf(netns string) (state, error) {
	if err := settle(netns); err != nil {
		return nil, err
	}
	return readState(netns)
}

// readState returns the current state of a namespace.
func readState(netns string) (state, error) {
	var s state
	for _, table := range []struct {
		name string
		args []string
	}{
		{"link", []string{"link", "show"}},
		{"address", []string{"address", "show"}},
		{"route", []string{"-4", "route", "show", "table", "all"}},
		{"route", []string{"-6", "route", "show", "table", "all"}},
		{"rule", []string{"-4", "rule", "show"}},
		{"rule", []string{"-6", "rule", "show"}},
		{"neigh", []string{"neigh", "show", "nud", "permanent"}},
	} {
		var rows []map[string]any
		if err := ipJSON(netns, &rows, table.args...); err != nil {
			return nil, err
		}
		for _, row := range rows {
			s = append(s, linesOf(table.name, row)...)
		}
	}
	// Some settings cannot be read (write-only, or never set). grep's exit code
	// then reports an error, which is ignored.
	sysctls, err := run(inNetns(netns, "sh", "-c", `grep -rs "" /proc/sys/net/ipv4 /proc/sys/net/ipv6 || true`)...)
	if err != nil {
		return nil, err
	}
	s = append(s, strings.Split(strings.TrimSpace(sysctls), "\n")...)
	if hasRDMA {
		devices, err := rdmaState(netns)
		if err != nil {
			return nil, err
		}
		s = append(s, devices...)
	}
	slices.Sort(s)
	return s, nil
}

// linesOf returns the lines of one object of ip's output: a line for each fact
// of an interface, one line for a route or a rule.
func linesOf(table string, row map[string]any) []string {
	maps.DeleteFunc(row, func(key string, _ any) bool { return slices.Contains(volatile, key) })
	name, ok := row["ifname"].(string)
	if !ok {
		text, _ := json.Marshal(row) // it came from JSON
		return []string{table + " " + ticking.ReplaceAllString(string(text), "")}
	}
	var lines []string
	for key, value := range row {
		text, _ := json.Marshal(value)
		known := queuePair.ReplaceAllString(ticking.ReplaceAllString(string(text), ""), `"$1:…$2"`)
		lines = append(lines, fmt.Sprintf("%s %s: %s = %s", table, name, key, known))
	}
	return lines
}

// settleTime bounds duplicate address detection, and the kernel's report of a
// carrier.
const settleTime = 8 * time.Second

// settle waits until no address is tentative and every interface that is up is
// operating.
func settle(netns string) error {
	deadline := time.Now().Add(settleTime)
	for {
		var links []struct {
			Ifname    string
			Operstate string
			Flags     []string
			AddrInfo  []map[string]any `json:"addr_info"`
		}
		if err := ipJSON(netns, &links, "address", "show"); err != nil {
			return err
		}
		var waiting []string
		for _, l := range links {
			if slices.Contains(l.Flags, "UP") && l.Operstate != "UP" && l.Operstate != "UNKNOWN" {
				waiting = append(waiting, fmt.Sprintf("%s is %s", l.Ifname, l.Operstate))
			}
			for _, a := range l.AddrInfo {
				if a["tentative"] == true || a["dadfailed"] == true {
					waiting = append(waiting, fmt.Sprintf("%s of %s is tentative", a["local"], l.Ifname))
				}
			}
		}
		if len(waiting) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s did not come to rest in %s: %s", netns, settleTime, strings.Join(waiting, ", "))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// about returns the lines about an interface.
func (s state) about(ifname string) state {
	var found state
	for _, line := range s {
		if strings.Contains(line, ifname) {
			found = append(found, line)
		}
	}
	return found
}

// diff returns the lines that are in one state only, as diff(1) marks them.
func diff(before, after state) []string {
	var lines []string
	for len(before) > 0 || len(after) > 0 {
		switch {
		case len(after) == 0 || len(before) > 0 && before[0] < after[0]:
			lines = append(lines, "- "+before[0])
			before = before[1:]
		case len(before) == 0 || after[0] < before[0]:
			lines = append(lines, "+ "+after[0])
			after = after[1:]
		default:
			before, after = before[1:], after[1:]
		}
	}
	return lines
}

// states are the states of several namespaces, by name.
type states map[string]state

func statesOf(namespaces ...string) (states, error) {
	list := make([]state, len(namespaces))
	errs := make([]error, len(namespaces))
	var wait sync.WaitGroup
	for i, netns := range namespaces {
		wait.Go(func() { list[i], errs[i] = stateOf(netns) })
	}
	wait.Wait()
	found := states{}
	for i, netns := range namespaces {
		found[netns] = list[i]
	}
	return found, errors.Join(errs...)
}

// unchanged compares every namespace with its current state, prints the
// differences, and fails if there is one.
func (before states) unchanged() error {
	namespaces := slices.Sorted(maps.Keys(before))
	after, err := statesOf(namespaces...)
	if err != nil {
		return err
	}
	differ := 0
	for _, netns := range namespaces {
		lines := diff(before[netns], after[netns])
		if len(lines) == 0 {
			printLine("diff of %-6s before and after: empty (%d lines compared)", netns, len(after[netns]))
			continue
		}
		differ += len(lines)
		printLine("diff of %-6s before and after:", netns)
		for _, line := range lines {
			printLine("  %s", line)
		}
	}
	if differ > 0 {
		return fmt.Errorf("%d lines differ from before: something was left behind or not restored", differ)
	}
	return nil
}

// sameAbout fails if anything about an interface has changed. interfaces has
// the interface's name by namespace.
func (before states) sameAbout(interfaces map[string]string) error {
	now, err := statesOf(slices.Sorted(maps.Keys(interfaces))...)
	if err != nil {
		return err
	}
	for netns, ifname := range interfaces {
		was := before[netns].about(ifname)
		if len(was) == 0 {
			return fmt.Errorf("nothing was known about %s of %s", ifname, netns)
		}
		if lines := diff(was, now[netns].about(ifname)); len(lines) > 0 {
			return fmt.Errorf("%s of %s is not as it was:\n%s", ifname, netns, strings.Join(lines, "\n"))
		}
	}
	return nil
}
