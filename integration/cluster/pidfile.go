package cluster

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Claim writes the number of this process to a file. It is an error if the file names another
// process that runs, which has a cluster then: see [Unclaimed].
func Claim(pidfile string) error {
	if err := Unclaimed(pidfile); err != nil {
		return err
	}
	return os.WriteFile(pidfile, fmt.Appendln(nil, os.Getpid()), 0o600)
}

// Unclaimed returns an error if a file of [Claim] names a process that runs.
func Unclaimed(pidfile string) error {
	text, err := os.ReadFile(pidfile)
	if err != nil {
		return nil //nolint:nilerr // no file, no cluster
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err == nil && pid > 0 && syscall.Kill(pid, 0) == nil {
		return fmt.Errorf("process %d has a cluster already, says %s: end it by `make cluster-down`", pid, pidfile)
	}
	return nil
}
