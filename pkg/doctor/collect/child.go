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

	"github.com/rail-cni/rail-cni/pkg/doctor"
)

// childMemory bounds the process that reads, in bytes of data in addition to those of the runtime at the
// start. The race detector needs more.
var childMemory uint64 = 64 << 20

// The other bounds of a process that reads.
const (
	childTarget    = 40 << 20 // of the garbage collector
	maxChildAnswer = 16 << 20 // bytes of its answer
	maxErrOutput   = 4 << 10  // bytes of what it says when it fails
	childReserve   = 500 * time.Millisecond
	childEnd       = 2 * time.Second // after its answer, or after SIGKILL
	maxStuck       = 2               // processes that cannot be killed
)

// Reader reads the facts of the node, each time in a process of its own, which has no file of
// this one, bounded memory and bounded time. So a pod whose files or links make reading hang or
// grow costs facts, and not this process: a thread that the kernel does not let go would keep
// it, with all its files, from ending. The zero value needs Command. Its methods are safe for
// concurrent use.
type Reader struct {
	// Command is the program with its arguments that calls [ReadFor].
	Command []string

	mu    sync.Mutex
	stuck []*stuck
}

// stuck is a process that has not ended after SIGKILL.
type stuck struct {
	pid   int
	since time.Time
	hangs map[string]time.Time // the sources that it reads, and since when
}

// request is what the process gets.
type request struct {
	Options     // without the fields that JSON cannot have
	NoClient    string
	NoPods      string // why nothing of pods is read; "" reads it
	NoFiles     string // why no files of pods are read
	Status      json.RawMessage
	StatusError string
	Limit       time.Duration
	Hangs       map[string]time.Time // sources not to be read
}

// answer is what it returns.
type answer struct {
	Facts *doctor.Facts
	Hangs map[string]time.Time
}

// Node is [Node] in a process of its own. The options may have no Client, Done and Pending. If
// the process fails, one more reads what is not of pods. If that fails too, the facts say why. If
// two processes cannot be ended, the files of pods are not read, because no other source can do that.
func (r *Reader) Node(ctx context.Context, o Options) *doctor.Facts {
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
		q.NoFiles = fmt.Sprintf("not read, because earlier processes that read it cannot be ended (PIDs %s): a file of a pod hangs", strings.Join(stuck, ", "))
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
		f = Node(ended, o) // reads nothing
	}
	return f
}

// hanging adds the sources that hang to the map, and returns the processes that read them.
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

// read runs a process in the caller's netns, and returns when it has answered or failed: it may
// never end.
func (r *Reader) read(ctx context.Context, q *request) (*doctor.Facts, error) {
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
	said := &output{}
	cmd := exec.Command(r.Command[0], r.Command[1:]...) //nolint:gosec // it is this program
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), to, said
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
		err := (&collector{host: host}).enter() // Pdeathsig is about its thread
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
		if text := said.text(); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return nil, err // the answer may still be decoded
	}
	r.end(cmd.Process, ended, true, a.Hangs)
	if a.Facts == nil {
		return nil, errors.New("its answer has no facts")
	}
	return a.Facts, nil
}

// runLimit bounds a run without a deadline.
const runLimit = 15 * time.Second

// end waits for the process's end, and kills it. One that does not end is noted until it does.
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

// output keeps the beginning of what a process says.
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

// text returns the first line.
func (s *output) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	line, _, _ := strings.Cut(strings.TrimSpace(string(s.buf)), "\n")
	return line
}

// ReadFor is the process of a [Reader]: it reads the request from in, and writes the facts to
// out. It bounds the memory of this process, which should do nothing else.
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

// confine bounds the memory of this process, and makes it the first to be killed if there is
// none left. More memory than that ends it.
func confine() error {
	debug.SetMemoryLimit(childTarget)
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0) // only a wish
	status, err := readText("/proc/self/status")
	if err != nil {
		return err
	}
	var data uint64 // kB; most of it is reserved, and never used
	for line := range strings.Lines(status) {
		if key, value, _ := strings.Cut(line, ":"); key == "VmData" {
			data, err = number(strings.TrimSuffix(strings.TrimSpace(value), " kB"), nil)
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
