package collect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// childMemory is the memory that the reading process may use, in bytes of data in addition to what Go's runtime has at
// the start. The race detector needs more.
var childMemory uint64 = 64 << 20

// These are the other limits of a reading process.
const (
	childTarget    = 40 << 20 // the memory limit for Go's garbage collector
	maxChildAnswer = 16 << 20 // the maximum size of its answer, in bytes
	maxErrOutput   = 4 << 10  // the maximum size of its error output, in bytes
	childReserve   = 500 * time.Millisecond
	childEnd       = 2 * time.Second // how long it may take to end after its answer or after SIGKILL
	maxStuck       = 2               // the maximum number of processes that cannot be killed
)

// Reader reads the facts of the node, each time in a separate process. That process has none of the
// caller's files, limited memory and limited time. So if a pod's files or links make reading hang
// or need much memory, only facts are lost. In the caller's own process, a thread that hangs in the
// kernel would keep the process and all its files from ending. Before use, Command must be set. The
// methods are safe for concurrent use.
type Reader struct {
	// Command is the program, with its arguments, that calls [ReadFor].
	Command []string

	mu    sync.Mutex
	stuck []*stuck
}

// stuck is a process that has not ended after SIGKILL.
type stuck struct {
	pid   int
	since time.Time
	hangs map[string]time.Time // the sources that it was reading, and since when
}

// request is the message to the reading process.
type request struct {
	Options     // only the fields that JSON can represent
	NoClient    string
	NoPods      string // the reason not to read anything about pods, "" to read it
	NoFiles     string // the reason not to read files of pods, "" to read them
	Status      json.RawMessage
	StatusError string
	Limit       time.Duration
	Hangs       map[string]time.Time // sources that must not be read
}

// answer is the message from the reading process.
type answer struct {
	Facts *fact.Facts
	Hangs map[string]time.Time
}

// Node does the same as the function [Node], but in a separate process. The options must not have
// Client, Done or Pending. If the process fails, Node starts a second process, which reads nothing
// about pods. If the second process also fails, all facts have that error. If two earlier processes
// cannot be ended, Node does not read files of pods, because only such files can make a process
// hang forever.
func (r *Reader) Node(ctx context.Context, o Options) *fact.Facts {
	q := request{Options: o, Hangs: map[string]time.Time{}}
	q.Options.Client, q.Options.NoClient, q.Options.Status, q.Options.Done, q.Options.Pending = nil, nil, nil, nil, nil
	if o.NoClient != nil {
		q.NoClient = o.NoClient.Error()
	}
	if o.Status != nil {
		status, err := o.Status()
		if q.Status = status; err != nil {
			q.Status, q.StatusError = nil, err.Error()
		}
	}
	stuck := r.hanging(q.Hangs)
	if len(stuck) >= maxStuck {
		q.NoFiles = fmt.Sprintf("not read, because reading a file of a pod hangs, and the processes that tried to read it cannot be ended (PIDs %s)", strings.Join(stuck, ", "))
	}
	f, err := r.read(ctx, &q)
	if err != nil && q.NoPods == "" && ctx.Err() == nil {
		q.NoPods = fmt.Sprintf("not read, because the process that read it failed: %v", err)
		f, err = r.read(ctx, &q)
	}
	if err != nil {
		ended, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		cancel(fmt.Errorf("the process that reads facts failed: %w", err))
		o.Client, o.Pending = nil, nil
		f = Node(ended, o) // reads nothing: ended has already ended
	}
	return f
}

// hanging adds the sources that hang to the map. It returns the PIDs of the processes that were
// reading them.
func (r *Reader) hanging(hangs map[string]time.Time) (pids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.stuck {
		pids = append(pids, fmt.Sprint(s.pid))
		for source, since := range s.hangs {
			hangs[source] = since
		}
	}
	return pids
}

// read runs a reading process in the caller's netns. It returns when the process has answered or
// failed, but does not wait until the process has ended, because the process may never end.
func (r *Reader) read(ctx context.Context, q *request) (*fact.Facts, error) {
	q.Limit = runLimit
	if end, ok := ctx.Deadline(); ok {
		q.Limit = min(q.Limit, time.Until(end)-childReserve)
	}
	if q.Limit <= 0 {
		return nil, context.DeadlineExceeded
	}
	input, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	out, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	printed := &output{}
	cmd := exec.Command(r.Command[0], r.Command[1:]...) //nolint:gosec // the command is this program
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), to, printed
	cmd.Env = append(os.Environ(), "GOTRACEBACK=none")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	host, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		_ = to.Close()
		return nil, err
	}
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		err := (&collector{host: host}).enter() // Pdeathsig depends on the thread that starts the process
		if err == nil {
			err = cmd.Start()
		}
		_ = errors.Join(to.Close(), host.Close())
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	answered := make(chan error, 1)
	a := &answer{}
	go func() { answered <- json.NewDecoder(io.LimitReader(out, maxChildAnswer)).Decode(a) }()
	timer := time.NewTimer(q.Limit + childReserve)
	defer timer.Stop()
	select {
	case err = <-answered:
	case <-timer.C:
		err = fmt.Errorf("no answer within %v", (q.Limit + childReserve).Round(time.Millisecond))
	case <-ctx.Done():
		err = fmt.Errorf("no answer: %w", ctx.Err())
	}
	if err != nil {
		r.end(cmd.Process, ended, false, nil)
		if text := printed.text(); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return nil, err // the answer may still be in use by the decoder
	}
	r.end(cmd.Process, ended, true, a.Hangs)
	if a.Facts == nil {
		return nil, errors.New("the answer has no facts")
	}
	return a.Facts, nil
}

// runLimit is the time limit of a run whose context has no deadline.
const runLimit = 15 * time.Second

// end waits until the process has ended, and kills it if necessary. If the process does not end,
// end notes it in r until it does.
func (r *Reader) end(p *os.Process, ended chan struct{}, answered bool, hangs map[string]time.Time) {
	within := func(d time.Duration) bool {
		select {
		case <-ended:
			return true
		case <-time.After(d):
			return false
		}
	}
	if answered && within(childEnd) {
		return
	}
	_ = p.Kill()
	if within(childEnd) {
		return
	}
	s := &stuck{pid: p.Pid, since: time.Now(), hangs: hangs}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stuck = append(r.stuck, s)
	go func() {
		<-ended
		r.mu.Lock()
		defer r.mu.Unlock()
		r.stuck = slices.DeleteFunc(r.stuck, func(o *stuck) bool { return o == s })
	}()
}

// output keeps the beginning of a process's error output.
type output struct {
	mu  sync.Mutex
	buf []byte
}

func (s *output) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf = append(s.buf, p[:min(len(p), maxErrOutput-len(s.buf))]...)
	return len(p), nil
}

// text returns the first line of the output.
func (s *output) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	line, _, _ := strings.Cut(strings.TrimSpace(string(s.buf)), "\n")
	return line
}

// ReadFor is the main function of the process that a [Reader] starts. It reads the request from in
// and writes the facts to out. It limits the memory of the whole process, so the process should do
// nothing else.
func ReadFor(ctx context.Context, in io.Reader, out io.Writer) error {
	if err := confine(); err != nil {
		return err
	}
	q := &request{}
	if err := json.NewDecoder(in).Decode(q); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	o := q.Options
	o.Pending = &Pending{reads: map[string]*pendingRead{}}
	for source, since := range q.Hangs {
		o.Pending.reads[source] = &pendingRead{since: since, count: 1, hangs: true}
	}
	if q.NoClient != "" {
		o.NoClient = errors.New(q.NoClient)
	}
	if q.NoPods != "" {
		o.noPods = errors.New(q.NoPods)
	}
	if q.NoFiles != "" {
		o.noFiles = errors.New(q.NoFiles)
	}
	if q.Status != nil || q.StatusError != "" {
		o.Status = func() ([]byte, error) {
			if q.StatusError != "" {
				return nil, errors.New(q.StatusError)
			}
			return q.Status, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, q.Limit)
	defer cancel()
	return json.NewEncoder(out).Encode(answer{Node(ctx, o), o.Pending.hanging()})
}

// confine limits the memory of this process. If the process needs more memory, it ends. If the
// machine runs out of memory, the kernel kills this process first.
func confine() error {
	debug.SetMemoryLimit(childTarget)
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0) // an error does not matter
	status, err := files.ReadText("/proc/self/status")
	if err != nil {
		return err
	}
	var data uint64 // in kB; most of this memory is reserved and never used
	for line := range strings.Lines(status) {
		if key, value, _ := strings.Cut(line, ":"); key == "VmData" {
			data, err = files.Number(strings.TrimSuffix(strings.TrimSpace(value), " kB"), nil)
		}
	}
	if err != nil || data == 0 {
		return fmt.Errorf("the size of this process is unknown: %w", err)
	}
	for resource, limit := range map[int]uint64{unix.RLIMIT_DATA: data<<10 + childMemory, unix.RLIMIT_CORE: 0} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return os.NewSyscallError("setrlimit", err)
		}
	}
	return nil
}
