package rig

import (
	"bufio"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// trouble matches the first lines of a kernel's reports of trouble.
var trouble = regexp.MustCompile(`WARNING: |BUG: |Oops|general protection fault|Kernel panic|blocked for more than|` +
	`unregister_netdevice: waiting|refcount_t: |possible recursive locking|circular locking|soft lockup|kmemleak: \d`)

const (
	linesBefore  = 8  // kept before the first such line, which often show the cause
	troubleLines = 60 // kept in all
	lastLines    = 20 // kept in any case
)

// consoleLog is the part of a kernel's console output that helps a reader.
type consoleLog struct {
	trouble []string
	tail    []string
	done    chan struct{}
}

// watchConsole reads the console until it is closed.
func watchConsole(console io.Reader) *consoleLog {
	c := &consoleLog{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		for lines := bufio.NewScanner(console); lines.Scan(); {
			c.add(strings.TrimRight(lines.Text(), "\r"))
		}
		_, _ = io.Copy(io.Discard, console) // after a line too long to scan
	}()
	return c
}

func (c *consoleLog) add(line string) {
	switch {
	case len(c.trouble) == 0 && trouble.MatchString(line):
		c.trouble = append(slices.Clone(c.tail[max(0, len(c.tail)-linesBefore):]), line)
	case len(c.trouble) > 0 && len(c.trouble) < troubleLines:
		c.trouble = append(c.trouble, line)
	}
	c.tail = append(c.tail, line)
	if len(c.tail) > lastLines {
		c.tail = c.tail[1:]
	}
}

// flags matches the flags register in a report of an x86 kernel.
var flags = regexp.MustCompile(`EFLAGS: ([0-9a-f]{8})`)

// impossibleFlags reports whether a report of trouble has flags that no CPU has: the bits from 22 on
// are reserved, and 0 (Intel SDM, volume 1, 3.4.3). QEMU 7.2 without KVM was seen with the half of an
// address there. A program whose flags are such traps, and ends by SIGSEGV.
func (c *consoleLog) impossibleFlags() bool {
	for _, m := range flags.FindAllStringSubmatch(strings.Join(c.trouble, "\n"), -1) {
		if n, err := strconv.ParseUint(m[1], 16, 32); err == nil && n>>22 != 0 {
			return true
		}
	}
	return false
}

// wait waits for the end of the console.
func (c *consoleLog) wait() *consoleLog {
	<-c.done
	return c
}

func (c *consoleLog) last() string { return strings.Join(c.tail, "\n") }
