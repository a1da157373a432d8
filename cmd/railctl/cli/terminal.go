package cli

import (
	"fmt"
	"io"
	"log/slog"
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

// Colored reports whether the output to w may have colors (no-color.org).
func Colored(w io.Writer) bool {
	_, ok := terminal(w)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// Progress is a line on a terminal that shows how far a command is.
type Progress struct {
	to io.Writer
	mu sync.Mutex
}

// NewProgress returns a progress line on w. It returns nil if w is not a terminal: then Show returns
// nil, and Clear does nothing.
func NewProgress(w io.Writer) *Progress {
	if _, ok := terminal(w); !ok || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return &Progress{to: w}
}

// Show returns a function that writes how many of all things are done. The text has a verb for both
// numbers. The function is safe for concurrent use.
func (p *Progress) Show(text string) func(done, all int) {
	if p == nil {
		return nil
	}
	return func(done, all int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		fmt.Fprintf(p.to, "\r"+text, done, all)
	}
}

// Clear removes the line.
func (p *Progress) Clear() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprint(p.to, "\r\x1b[K")
}

// Note writes a line for the user that begins with the program's name. What is not printable is
// escaped.
func Note(w io.Writer, format string, args ...any) {
	fmt.Fprintf(Escaper(w), Program+": "+format+"\n", args...)
}

// Escaper returns a writer of text for people to w. The text may contain names and messages from
// others, for example from pods that are named in address pools. So characters that are not
// printable are written as escapes, and cannot change the terminal. Each text that is written must
// end with a complete character.
func Escaper(w io.Writer) io.Writer { return escaper{w} }

type escaper struct{ io.Writer }

func (w escaper) Write(p []byte) (int, error) {
	_, err := io.WriteString(w.Writer, escaped(string(p)))
	return len(p), err
}

// escaped returns text with an escape in place of each character that is not printable. Line breaks
// and tabs are kept.
func escaped(text string) string {
	var out strings.Builder
	for i, r := range text {
		_, size := utf8.DecodeRuneInString(text[i:])
		switch char := text[i : i+size]; {
		case r == '\n', r == '\t', strconv.IsPrint(r) && r != utf8.RuneError:
			out.WriteString(char)
		default:
			out.WriteString(strings.Trim(strconv.QuoteToASCII(char), `"`))
		}
	}
	return out.String()
}

// PlainLog returns a logger for a person at a terminal. It prints only warnings and errors, without
// the time.
func PlainLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{
		Level: slog.LevelWarn,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
}
