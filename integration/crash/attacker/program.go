package attacker

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Plan is the program's configuration.
type Plan struct {
	Seed  uint64 `json:"seed"`
	Plain bool   `json:"plain"` // has its capabilities in the first user namespace
	Only  string `json:"only"`  // a regular expression of names; with a "!" before it all others

	Hardware bool `json:"hardware"` // the NICs are hardware, with RDMA devices
}

// planVar is the environment variable with the plan.
const planVar = "RAIL_CNI_ATTACK_PLAN"

// Environment returns the variable that makes a test program an attacker.
func (p Plan) Environment() string {
	text, _ := json.Marshal(p) // cannot fail
	return planVar + "=" + string(text)
}

// Asked runs the attacker and never returns if this process was started as one;
// otherwise it returns at once.
func Asked() {
	text := os.Getenv(planVar)
	if text == "" {
		return
	}
	var p Plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	p.run()
}

// Done is one attack in the program's output: a line of JSON.
type Done struct {
	Attack string `json:"attack"`
	Link   string `json:"link"`
	Err    string `json:"err,omitempty"`
}

// target is an interface of the attacker's namespace.
type target struct {
	name  string
	index int
}

// attacker is the running program.
type attacker struct {
	Plan
	*rand.Rand
	rails  []string // names of the host's NICs
	ground *os.File // its own network namespace
	keep   []int    // file descriptors of BPF links and sockets
	made   []int    // interfaces that it made
}

// run attacks until the process is killed.
func (p Plan) run() {
	runtime.LockOSThread()
	a := &attacker{Plan: p, Rand: rand.New(rand.NewPCG(p.Seed, 1)), rails: make([]string, 8)}
	for i := range a.rails {
		a.rails[i] = fmt.Sprintf("rail%d", i)
	}
	// /proc and /sys of its own namespaces, as in a container.
	_ = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	for dir, kind := range map[string]string{"/proc": "proc", "/sys": "sysfs"} {
		if err := unix.Mount(kind, dir, kind, 0, ""); err != nil {
			fmt.Fprintf(os.Stderr, "mount %s: %v\n", dir, err)
		}
	}
	var err error
	if a.ground, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	var mix []attack
	pattern, others := strings.CutPrefix(p.Only, "!")
	only := regexp.MustCompile(pattern)
	for _, atk := range attacks {
		if !atk.possible(p.Plain, p.Hardware) || only.MatchString(atk.name) == others {
			continue
		}
		for range atk.weight {
			mix = append(mix, atk)
		}
	}
	out := json.NewEncoder(os.Stdout)
	for _ = out.Encode(Done{}); ; time.Sleep(time.Duration(1+a.IntN(12)) * time.Millisecond) {
		links := interfaces()
		if len(links) == 0 {
			continue
		}
		atk, link := mix[a.IntN(len(mix))], a.choose(links)
		d := Done{Attack: atk.name, Link: link.name}
		if err := atk.do(a, link); err != nil {
			d.Err = err.Error()
		}
		_ = out.Encode(d) // no one may listen: the program is killed soon
	}
}

// choose returns one of the interfaces, seldom one of the program's own.
func (a *attacker) choose(links []target) target {
	link := links[a.IntN(len(links))]
	for range 3 {
		if !slices.Contains(a.made, link.index) {
			break
		}
		link = links[a.IntN(len(links))]
	}
	return link
}

// interfaces lists the interfaces of the thread's namespace but the loopback.
func interfaces() (found []target) {
	f, err := os.Open("/proc/thread-self/net/dev")
	if err != nil {
		return nil
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, _, is := strings.Cut(strings.TrimSpace(lines.Text()), ":")
		if !is || name == "lo" || strings.Contains(name, "|") {
			continue
		}
		if index, err := indexOf(name); err == nil {
			found = append(found, target{name, index})
		}
	}
	return found
}

// Names lists the attacks that succeed if the kernel supports them, of a plain
// pod or one with a user namespace, on NICs of hardware or others.
func Names(plain, hardware bool) (names []string) {
	for _, atk := range attacks {
		if atk.possible(plain, hardware) {
			names = append(names, atk.name)
		}
	}
	return names
}
