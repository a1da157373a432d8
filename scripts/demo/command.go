package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// run runs a command and returns its stdout. The error contains the command and
// its stderr.
func run(command ...string) (string, error) { return runEnv(nil, command...) }

func runEnv(env []string, command ...string) (string, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("$ %s\n%s%s%w", strings.Join(command, " "), stdout.String(), stderr.String(), err)
	}
	return stdout.String(), nil
}

// runAll runs commands, each written as one line, until one fails.
func runAll(lines ...string) error {
	for _, line := range lines {
		if _, err := run(strings.Fields(line)...); err != nil {
			return err
		}
	}
	return nil
}

// ipJSON runs `ip -d -j` in a netns and decodes its output.
func ipJSON(netns string, into any, args ...string) error {
	out, err := run(append([]string{"ip", "-n", netns, "-d", "-j"}, args...)...)
	if err != nil {
		return err
	}
	if strings.TrimSpace(out) == "" {
		return nil // ip prints nothing for an empty list
	}
	return json.Unmarshal([]byte(out), into)
}

// inNetns returns a command that runs another in a netns.
func inNetns(netns string, command ...string) []string {
	return append([]string{"ip", "netns", "exec", netns}, command...)
}
