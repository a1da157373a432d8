package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// terminal returns the file descriptor of w. ok reports whether w is a terminal.
func terminal(w io.Writer) (fd int, ok bool) {
	f, isFile := w.(*os.File)
	if !isFile {
		return 0, false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return int(f.Fd()), err == nil
}

// colored reports whether the output to w may have colors (no-color.org).
func colored(w io.Writer) bool {
	_, ok := terminal(w)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// progress is a line on a terminal that shows how far a command is.
type progress struct {
	to io.Writer
	mu sync.Mutex
}

// newProgress returns a progress line on w. It returns nil if w is not a terminal.
func newProgress(w io.Writer) *progress {
	if _, ok := terminal(w); !ok || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return &progress{to: w}
}

// show returns a function that writes how many of all things are done. The text has a verb for both
// numbers. The function is safe for concurrent use.
func (p *progress) show(text string) func(done, all int) {
	return func(done, all int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		fmt.Fprintf(p.to, "\r"+text, done, all)
	}
}

// clear removes the line.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprint(p.to, "\r\x1b[K")
}

// note writes a line for the user that begins with the program's name. What is not printable is
// escaped.
func note(w io.Writer, format string, args ...any) {
	fmt.Fprintf(forPeople{w}, program+": "+format+"\n", args...)
}

// forPeople writes text for people. The text may contain names and messages from others, for
// example from pods that are named in address pools. So characters that are not printable are
// written as escapes, and cannot change the terminal.
type forPeople struct{ io.Writer }

// Write writes p. p must end with a complete character.
func (w forPeople) Write(p []byte) (int, error) {
	_, err := io.WriteString(w.Writer, escaped(string(p)))
	return len(p), err
}

// escaped returns text with an escape in place of each character that is not printable. Line breaks
// and tabs are kept.
func escaped(text string) string {
	var out strings.Builder
	for at, r := range text {
		_, size := utf8.DecodeRuneInString(text[at:])
		switch char := text[at : at+size]; {
		case r == '\n', r == '\t', strconv.IsPrint(r) && r != utf8.RuneError:
			out.WriteString(char)
		default:
			out.WriteString(strings.Trim(strconv.QuoteToASCII(char), `"`))
		}
	}
	return out.String()
}
