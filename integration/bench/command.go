package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// command is one process that is measured: a plugin's verb, or ip(8).
type command struct {
	path  string
	args  []string
	env   []string
	stdin []byte
	netns string // where it runs; empty is the node
}

// scratch holds the stdin and stdout of measured processes in plain files on
// tmpfs: with pipes, goroutines of ours would be part of the measurement.
type scratch struct{ in, out *os.File }

func newScratch(dir string) (*scratch, error) {
	in, err := os.Create(filepath.Join(dir, "stdin"))
	if err != nil {
		return nil, err
	}
	out, err := os.Create(filepath.Join(dir, "stdout"))
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return &scratch{in: in, out: out}, nil
}

// load puts stdin before a process, and empties what the last one printed.
func (s *scratch) load(stdin []byte) error {
	for _, f := range []*os.File{s.in, s.out} {
		if err := f.Truncate(0); err != nil {
			return err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	if _, err := s.in.Write(stdin); err != nil {
		return err
	}
	_, err := s.in.Seek(0, io.SeekStart)
	return err
}

// printed gives what the last process wrote.
func (s *scratch) printed() ([]byte, error) {
	if _, err := s.out.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(s.out)
}

// took is what a process and those that it waited for (an IPAM plugin) cost.
type took struct {
	wall time.Duration // from before fork to after wait
	cpu  time.Duration // of all of them: hardly changes with what else runs
}

// time runs c, and gives what it cost and what it printed.
func (s *scratch) time(c command) (took, []byte, error) {
	if err := s.load(c.stdin); err != nil {
		return took{}, nil, err
	}
	cmd := exec.Command(c.path, c.args...)
	cmd.Env = c.env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.in, s.out, s.out

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
		return took{}, nil, fmt.Errorf("%s: %w: %s", c, err, message(out))
	}
	t.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return t, out, readErr
}

// String names the command as a person would.
func (c command) String() string {
	for _, v := range c.env {
		if verb, ok := strings.CutPrefix(v, "CNI_COMMAND="); ok {
			return filepath.Base(c.path) + " " + verb
		}
	}
	return strings.Join(append([]string{filepath.Base(c.path)}, c.args...), " ")
}

// message finds the words of a CNI error in a plugin's output.
func message(out []byte) string {
	var e struct {
		Msg     string `json:"msg"`
		Details string `json:"details"`
	}
	if json.Unmarshal(out, &e) == nil && e.Msg != "" {
		return strings.TrimSuffix(e.Msg+"; "+e.Details, "; ")
	}
	return string(bytes.TrimSpace(out))
}
