package rig

import (
	"bufio"
	"io"
	"regexp"
	"strings"
)

// trouble matches the first lines of a kernel's reports of trouble.
var trouble = regexp.MustCompile(`WARNING: |BUG: |Oops|general protection fault|Kernel panic|blocked for more than|` +
	`unregister_netdevice: waiting|refcount_t: |possible recursive locking|circular locking|soft lockup|kmemleak: \d`)

const (
	troubleLines = 60 // kept from the first such line on
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
	if len(c.trouble) > 0 && len(c.trouble) < troubleLines || len(c.trouble) == 0 && trouble.MatchString(line) {
		c.trouble = append(c.trouble, line)
	}
	c.tail = append(c.tail, line)
	if len(c.tail) > lastLines {
		c.tail = c.tail[1:]
	}
}

// wait waits for the end of the console.
func (c *consoleLog) wait() *consoleLog {
	<-c.done
	return c
}

func (c *consoleLog) last() string { return strings.Join(c.tail, "\n") }
