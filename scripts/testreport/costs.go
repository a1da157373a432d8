package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// costsFile is the name of the file with the CPU seconds of test programs: a line of JSON, a timing,
// for each, named by -as, or else by the directory of its package.
const costsFile = "costs"

// runAndCost runs a test program in the place of go test (-exec), and appends the CPU seconds of the
// program and of those that it has waited for to the costs in dir, by the name, or without one by
// the directory of its package. It returns the program's exit status.
func runAndCost(dir, name string, program []string) (status int, err error) {
	if len(program) == 0 {
		return 1, errors.New("no program to run")
	}
	// Pdeathsig is sent when the thread ends that started the program.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(program[0], program[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// By it go test asks the program for its stacks. Any other signal ends both.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGQUIT)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case s := <-signals:
				_ = cmd.Process.Signal(s) // it may have ended
			case <-done:
				return
			}
		}
	}()
	_ = cmd.Wait() // the state has how it ended
	state := cmd.ProcessState
	if status = state.ExitCode(); status < 0 {
		fmt.Fprintln(os.Stderr, state) // go test tells a signal only of its own child
		status = 1
	}
	if name == "" {
		if name, err = os.Getwd(); err != nil {
			return status, err
		}
	}
	return status, appendLine(filepath.Join(dir, costsFile), timing{name, (state.UserTime() + state.SystemTime()).Seconds()})
}

// printCosts prints the packages that took the most CPU seconds, and what they took before.
func printCosts(out io.Writer, dir, before string) error {
	all, err := readLines[timing](filepath.Join(dir, costsFile))
	if err != nil {
		return err
	}
	earlier, err := readLines[timing](filepath.Join(before, costsFile))
	if err != nil {
		return err
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	for _, list := range [][]timing{all, earlier} {
		for i := range list {
			list[i].Name = strings.TrimPrefix(list[i].Name, root+"/")
		}
	}
	printLargest(out, "most CPU seconds", 25, all, earlier)
	return nil
}
