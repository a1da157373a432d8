package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// command is one measured process: a plugin's verb, or ip(8).
type command struct {
	path  string
	args  []string
	env   []string
	stdin []byte
	netns string // where it runs; "" is the node
}

// step makes one process of a verb from the result that the runtime has so far:
// that of the previous plugin or, at DEL, that of ADD.
type step func(result []byte) (command, error)

// always returns a step that ignores the result.
func always(c command) step {
	return func([]byte) (command, error) { return c, nil }
}

// scratch holds the stdin and stdout of measured processes in plain files on
// tmpfs: with pipes, goroutines of ours would be part of the measurement.
type scratch struct{ stdin, out, errOut *os.File }

func newScratch(dir string) (*scratch, error) {
	s := &scratch{}
	for name, f := range map[string]**os.File{"stdin": &s.stdin, "stdout": &s.out, "stderr": &s.errOut} {
		var err error
		if *f, err = os.Create(filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// load puts stdin before a process, and empties what the last one printed.
func (s *scratch) load(stdin []byte) error {
	for _, f := range []*os.File{s.stdin, s.out, s.errOut} {
		if err := f.Truncate(0); err != nil {
			return err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	if _, err := s.stdin.Write(stdin); err != nil {
		return err
	}
	_, err := s.stdin.Seek(0, io.SeekStart)
	return err
}

// printed returns what the last process wrote to its stdout.
func (s *scratch) printed() ([]byte, error) { return reread(s.out) }

func reread(f *os.File) ([]byte, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}

// perform runs the steps of a verb one after another, as a runtime does that
// already has the result. It returns what they cost together, and the new
// result.
func (s *scratch) perform(steps []step, result []byte) (took, []byte, error) {
	var sum took
	for _, step := range steps {
		c, err := step(result)
		if err != nil {
			return took{}, nil, err
		}
		t, out, err := s.time(c)
		if err != nil {
			return took{}, nil, err
		}
		sum.wall, sum.cpu = sum.wall+t.wall, sum.cpu+t.cpu
		if len(out) > 0 {
			result = out
		}
	}
	return sum, result, nil
}

// took is the cost of a process and of its children that it waited for (an IPAM
// plugin).
type took struct {
	wall time.Duration // from before fork to after wait
	cpu  time.Duration // of all of them: hardly changes with the machine's other load
}

// time runs c and returns its cost and what it printed.
func (s *scratch) time(c command) (took, []byte, error) {
	if err := s.load(c.stdin); err != nil {
		return took{}, nil, err
	}
	cmd := exec.Command(c.path, c.args...)
	cmd.Env = c.env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.stdin, s.out, s.errOut

	var t took
	run := func() error {
		began := time.Now()
		err := cmd.Run()
		t.wall = time.Since(began)
		return err
	}
	var err error
	if c.netns == "" {
		err = run()
	} else {
		err = within(c.netns, run)
	}
	out, readErr := s.printed()
	if err != nil {
		complaint, _ := reread(s.errOut) // its stdout may contain the message
		return took{}, nil, fmt.Errorf("%s: %w: %s", c, err, message(append(out, complaint...)))
	}
	t.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return t, out, readErr
}

// String returns the command line as a person would type it.
func (c command) String() string {
	for _, v := range c.env {
		if verb, ok := strings.CutPrefix(v, "CNI_COMMAND="); ok {
			return filepath.Base(c.path) + " " + verb
		}
	}
	return strings.Join(append([]string{filepath.Base(c.path)}, c.args...), " ")
}

// message finds the message of a CNI error in a plugin's output. The plugin's
// log may follow it.
func message(out []byte) string {
	var e struct {
		Msg     string `json:"msg"`
		Details string `json:"details"`
	}
	if json.NewDecoder(bytes.NewReader(out)).Decode(&e) == nil && e.Msg != "" {
		return strings.TrimSuffix(e.Msg+"; "+e.Details, "; ")
	}
	return string(bytes.TrimSpace(out))
}
