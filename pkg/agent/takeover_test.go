package agent

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/pkg/agent/local"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// holds is a variable with the socket that the process of a test takes. It is read in init, which
// runs on the process' first thread.
const holds = "AGENT_TEST_SOCKET"

func init() {
	socket := os.Getenv(holds)
	if socket == "" {
		return
	}
	lock, err := takeSocket(socket)
	if err == nil {
		_, err = listenUnix(socket) // nobody accepts: it takes connections, and does not answer
	}
	if err != nil || lock == nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println("taken")
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	if os.Getenv(holds+"_DIES") != "" {
		time.Sleep(100 * time.Millisecond) // for the goroutine
		// This is like a killed process of which one thread is left: the first thread is a zombie,
		// but the process still holds the lock and the socket.
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
	}
	time.Sleep(time.Hour)
}

// holder starts a process that holds the socket and does not answer.
func holder(t *testing.T, socket string, dies bool) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), holds+"="+socket)
	if dies {
		cmd.Env = append(cmd.Env, holds+"_DIES=yes")
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "taken\n" {
		t.Fatalf("%q, %v", line, err)
	}
	for began := time.Now(); dies; time.Sleep(5 * time.Millisecond) {
		if fields := statOf(cmd.Process.Pid); len(fields) > 0 && fields[0] == "Z" {
			return
		}
		if time.Since(began) > time.Minute {
			t.Fatal("the process does not die")
		}
	}
}

func TestAgentTakesTheSocketOfOneThatCannotEnd(t *testing.T) {
	need.Root(t)
	socket := local.SocketIn(scratch.Dir(t))
	holder(t, socket, true)
	if c, err := net.Dial("unix", socket); err != nil {
		t.Fatal("it takes no connections:", err)
	} else {
		_ = c.Close()
	}
	lock, err := takeSocket(socket)
	if err != nil || lock == nil {
		t.Fatal(err)
	}
	if l, err := listenUnix(socket); err != nil {
		t.Error(err)
	} else {
		_ = l.Close()
	}
	_ = lock.Unlock()
}

func TestAgentDoesNotTakeTheSocketOfALivingOne(t *testing.T) {
	need.Root(t)
	t.Run("that is silent", func(t *testing.T) {
		socket := local.SocketIn(scratch.Dir(t))
		holder(t, socket, false)
		if _, err := takeSocket(socket); err == nil || !strings.Contains(err.Error(), "does not answer") || !strings.Contains(err.Error(), "PID ") {
			t.Error(err)
		}
	})
	t.Run("that answers, of an earlier version", func(t *testing.T) {
		socket := local.SocketIn(scratch.Dir(t))
		l, err := listenUnix(socket)
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }), ReadTimeout: time.Minute}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { _ = s.Close() })
		if _, err := takeSocket(socket); err == nil || !strings.Contains(err.Error(), "another rail-agent answers") {
			t.Error(err)
		}
	})
}

// TestLockOfAnotherPIDNamespaceIsTakenIfNobodyAnswers: if the owner of a lock was in another PID
// namespace, its PID says nothing about processes in this namespace.
func TestLockOfAnotherPIDNamespaceIsTakenIfNobodyAnswers(t *testing.T) {
	need.Root(t)
	dir := scratch.Dir(t)
	d, err := statefile.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	held, err := d.TryLock("agent.lock")
	if err != nil {
		t.Fatal(err)
	}
	other := ownerOf(os.Getppid())
	other.PIDNamespace = "pid:[1]"
	if err := held.Note(other.text()); err != nil {
		t.Fatal(err)
	}
	lock, err := takeSocket(filepath.Join(dir, "agent.sock"))
	if err != nil || lock == nil {
		t.Fatal(err)
	}
	_ = lock.Unlock()
	_ = held.Unlock()
}
