package facts

import (
	"embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Row is a question that the tests answer on each kernel.
type Row struct {
	Key  string
	Text string
}

// Rows are the rows of the table, in its order.
var Rows = []Row{
	{"lend", "A NIC is lent, and returns as it was"},
	{"death", "NICs of killed pods return, by DEL, `railctl gc`, the next ADD or rail-agent"},
	{"macvlan", "macvlan: ADD, CHECK and DEL work; DEL also works for a killed pod"},
	{"functions", "A virtual function is lent, and returns. The NIC to which it belongs is refused. The driver gets no query about virtual functions"},
	{"altnames", "Alternative names of a NIC"},
	{"parent", "A NIC's PCI address comes from"},
	{"netns", "A pod's network namespace is recognized by"},
	{"hidden", "A NIC in a namespace that only a socket keeps alive returns"},
	{"immovable", "A link that the kernel does not move is refused before anything changes"},
	{"settings", "What a pod sets by `ip link`, ethtool and sysfs is"},
	{"napi", "What a pod sets for one NAPI instance is"},
	{"xdp", "XDP programs of a pod are"},
	{"tcx", "tcx programs of a pod are"},
	{"mode", "The RDMA mode can be read and set"},
	{"shared", "RDMA in shared mode: the address of a macvlan gets a GID"},
	{"exclusive", "RDMA in exclusive mode: a device moves with its NIC, and returns"},
	{"users", "The guardrail `in-use` sees a process as soon as the process has"},
	{"notify", "rail-agent looks for a device that its driver re-created"},
}

//go:embed *.txt
var files embed.FS

// OfKernel returns what is known of a kernel ("6.12"), by keys. ok is false if the tests never
// ran there.
func OfKernel(linux string) (known map[string]string, ok bool) {
	text, err := files.ReadFile(linux + ".txt")
	if err != nil {
		return nil, false
	}
	known = map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		known[key] = value
	}
	return known, true
}

// Kernels returns the kernels with a file, the oldest first.
func Kernels() []string {
	entries, _ := files.ReadDir(".") // it is in the program
	var all []string
	for _, e := range entries {
		all = append(all, strings.TrimSuffix(e.Name(), ".txt"))
	}
	slices.SortFunc(all, func(a, b string) int { return slices.Compare(numbers(a), numbers(b)) })
	return all
}

func numbers(version string) (all []int) {
	for part := range strings.SplitSeq(version, ".") {
		n, _ := strconv.Atoi(part)
		all = append(all, n)
	}
	return all
}

// Markdown returns the table of docs/reference/kernels.md.
func Markdown() string {
	var b strings.Builder
	kernels := Kernels()
	fmt.Fprintf(&b, "| | Linux %s |\n|---|%s\n", strings.Join(kernels, " | "), strings.Repeat("---|", len(kernels)))
	for _, row := range Rows {
		fmt.Fprintf(&b, "| %s |", row.Text)
		for _, linux := range kernels {
			known, _ := OfKernel(linux)
			value := known[row.Key]
			if value == "" {
				value = "not run"
			}
			fmt.Fprintf(&b, " %s |", value)
		}
		b.WriteString("\n")
	}
	return b.String()
}
