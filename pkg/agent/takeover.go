package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/agent/local"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// answerTime is the time limit for the answer of an agent that may be dying.
const answerTime = 3 * time.Second

// owner is the content of the lock: the process that has the socket.
type owner struct {
	PID          int    `json:"pid"`
	PIDNamespace string `json:"pidNamespace"`
	Started      string `json:"started"` // in clock ticks since boot; needed because PIDs are used again
}

// takeSocket returns the lock of the socket's owner. It returns nil if the directory can have no
// lock, and an error if another agent has the socket. An agent that was killed, but cannot end
// because the kernel still holds it, no longer counts as having the socket. Its lock is still held
// and its socket still accepts connections, so only an answer shows that an agent lives.
func takeSocket(socket string) (*statefile.Lock, error) {
	dir, err := statefile.OpenExisting(filepath.Dir(socket))
	if err != nil {
		return nil, refuseIfAnswered(socket) // other users may write to the directory, so a lock would prove nothing
	}
	defer dir.Close()
	name := strings.TrimSuffix(filepath.Base(socket), ".sock") + ".lock"
	for range 2 {
		lock, err := dir.TryLock(name)
		if err == nil {
			err = errors.Join(refuseIfAnswered(socket), lock.Note(ownerOf(os.Getpid()).text()))
			if err != nil {
				return nil, errors.Join(err, lock.Unlock())
			}
			return lock, nil
		}
		if !errors.Is(err, statefile.ErrBusy) {
			return nil, err
		}
		if err := refuseIfAnswered(socket); err != nil {
			return nil, err
		}
		var has owner
		text, err := dir.Read(name)
		if err == nil {
			err = json.Unmarshal(text, &has)
		}
		if err == nil && has.lives() {
			return nil, failure.New(failure.IO, "another rail-agent, PID %d, has %s and does not answer", has.PID, socket).
				Cure("end that rail-agent, if necessary with SIGKILL, or name another socket with --socket")
		}
		if err := dir.Remove(name); err != nil {
			return nil, err
		}
	}
	return nil, failure.New(failure.IO, "several rail-agents start with the socket %s at the same time", socket)
}

// refuseIfAnswered returns an error if an agent answers at the socket.
func refuseIfAnswered(socket string) error {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	answer, err := local.Get(ctx, socket, "/healthz")
	if err != nil {
		return nil //nolint:nilerr // nobody listens on the socket
	}
	_ = answer.Body.Close()
	if answer.StatusCode == http.StatusNotFound {
		return failure.New(failure.IO, "%s is the socket of another program", socket)
	}
	return failure.New(failure.IO, "another rail-agent answers at %s", socket).Cure("end that rail-agent, or name another socket with --socket")
}

// ownerOf returns the values that identify a process. Started is empty if the process does not
// exist.
func ownerOf(pid int) owner {
	o := owner{PID: pid}
	o.PIDNamespace, _ = os.Readlink("/proc/self/ns/pid")
	if fields := statOf(pid); len(fields) > 19 {
		o.Started = fields[19]
	}
	return o
}

// statOf returns the fields after the name in the process's stat (proc_pid_stat(5)). Field 0 is the
// state, and field 19 is the start time.
func statOf(pid int) []string {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
}

func (o owner) text() []byte {
	text, _ := json.Marshal(o) // strings and a number
	return append(text, '\n')
}

// lives reports whether the process exists and has not been killed. For a process in another PID
// namespace it returns false, because nothing is known about that process.
func (o owner) lives() bool {
	now := ownerOf(o.PID)
	fields := statOf(o.PID)
	if o.PID == os.Getpid() || now != o || len(fields) == 0 || strings.Contains("ZX", fields[0]) {
		return false
	}
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(o.PID), "status"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		if key != "SigPnd" && key != "ShdPnd" {
			continue
		}
		if pending, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64); err == nil && pending&(1<<(unix.SIGKILL-1)) != 0 {
			return false
		}
	}
	return true
}
