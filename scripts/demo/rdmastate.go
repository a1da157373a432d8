package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// hasRDMA: the states of namespaces include RDMA devices.
var hasRDMA bool

// comparedWithRDMA replaces [compared] if hasRDMA is set.
const comparedWithRDMA = "links, addresses, routes, rules, sysctls, RDMA devices and ports, uverbs numbers; without counters, ifindex and numbers of queue pairs"

// ibdev is an RDMA device as sysfs shows it in a namespace.
type ibdev struct{ name, guid, parent, port, uverbs string }

// listRDMA prints a line for each RDMA device. It reads the files by the
// shell's own read, without a process for each.
const listRDMA = `
for dir in /sys/class/infiniband_verbs/uverbs*; do
	[ -e "$dir/ibdev" ] || continue
	read -r device <"$dir/ibdev"
	eval "uverbs_$device=${dir##*/}"
done
for dir in /sys/class/infiniband/*; do
	[ -e "$dir/node_guid" ] || continue
	device=${dir##*/}
	read -r guid <"$dir/node_guid"
	read -r state <"$dir/ports/1/state"
	eval "uverbs=\$uverbs_$device"
	cd -P "$dir/device" 2>/dev/null || cd -P "$dir" # software may have no parent
	echo "$device $guid ${PWD##*/} ${state#*: } $uverbs"
done
`

// ibdevs lists the RDMA devices that a namespace has.
func ibdevs(netns string) ([]ibdev, error) {
	out, err := run(inNetns(netns, "sh", "-euc", listRDMA)...)
	if err != nil {
		return nil, err
	}
	var list []ibdev
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 5 {
			return nil, fmt.Errorf("RDMA devices of %s: cannot read %q", netns, line)
		}
		list = append(list, ibdev{f[0], f[1], f[2], f[3], f[4]})
	}
	return list, nil
}

// rdmaState returns the facts about a namespace's RDMA devices that must be
// equal before and after.
func rdmaState(netns string) (state, error) {
	devices, err := ibdevs(netns)
	if err != nil {
		return nil, err
	}
	var s state
	for _, d := range devices {
		s = append(s, fmt.Sprintf("rdma %s: node GUID %s, of %s, port 1 %s, %s", d.name, d.guid, d.parent, d.port, d.uverbs))
	}
	out, err := run(inNetns(netns, "rdma", "-j", "link", "show")...)
	if err != nil {
		return nil, err
	}
	var ports []map[string]any
	if err := json.Unmarshal([]byte(out), &ports); err != nil {
		return nil, fmt.Errorf("rdma link of %s: %w", netns, err)
	}
	for _, p := range ports {
		s = append(s, linesOf("rdma link", p)...)
	}
	return s, nil
}

// names returns the names of RDMA devices, in order.
func names(list []ibdev) []string {
	set := map[string]bool{}
	for _, d := range list {
		set[d.name] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// openAll opens every uverbs device, as an RDMA program does, and prints the
// outcome.
const openAll = `
for file in /dev/infiniband/uverbs*; do
	if said=$( (: <>"$file") 2>&1 ); then said=opened; fi
	echo "${file##*/} ${said##*: }"
done
`

// opened is the outcome of opening a char device, in the kernel's words.
const (
	canOpen = "opened"
	refused = "Operation not permitted"
)

// openings opens every uverbs device from a namespace.
func openings(netns string) (map[string]string, error) {
	out, err := run(inNetns(netns, "sh", "-uc", openAll)...)
	if err != nil {
		return nil, err
	}
	result := map[string]string{}
	for line := range strings.Lines(out) {
		file, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		result[file] = text
	}
	return result, nil
}

// spans writes numbered names in short form: uverbs0-7, uverbs16.
func spans(names []string) string {
	var numbers []int
	prefix := ""
	for _, name := range names {
		prefix = strings.TrimRight(name, "0123456789")
		n, err := strconv.Atoi(name[len(prefix):])
		if err != nil {
			return strings.Join(names, ", ")
		}
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	var parts []string
	for len(numbers) > 0 {
		n := 1
		for n < len(numbers) && numbers[n] == numbers[n-1]+1 {
			n++
		}
		part := fmt.Sprintf("%s%d", prefix, numbers[0])
		if n > 1 {
			part += fmt.Sprintf("-%d", numbers[n-1])
		}
		parts, numbers = append(parts, part), numbers[n:]
	}
	return strings.Join(parts, ", ")
}
