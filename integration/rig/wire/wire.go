package wire

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Kind is the kind of a frame's content.
type Kind byte

// The kinds. They are letters so that garbage on the line is soon noticed.
const (
	Stdout Kind = 'o'
	Stderr Kind = 'e'
	News   Kind = 'n' // an [Event] in JSON
)

// Values of Event.What.
const (
	Booted  = "booted"  // the guest's first process runs
	Started = "started" // the test begins
	Failed  = "failed"  // the guest cannot run the test; see Text
	Ended   = "ended"   // the test has ended; see Code and Taint
)

// Event is a report of the guest.
type Event struct {
	Name   string  `json:"name"`
	Uptime float64 `json:"uptime"` // seconds since the guest's kernel began
	Code   int     `json:"code,omitempty"`
	Taint  uint64  `json:"taint,omitempty"` // /proc/sys/kernel/tainted
	Text   string  `json:"text,omitempty"`
}

// Job describes the test to run in the guest.
type Job struct {
	Args   []string `json:"args"` // of the test binary, which is at [TestBinary]
	Env    []string `json:"env"`
	Dir    string   `json:"dir"`    // working directory
	Module string   `json:"module"` // parameters of fakerdma
}

// Port is an environment variable of the guest's first process, which the
// kernel makes of an argument of that name: the file of the serial port that
// takes the frames.
const Port = "RIG_PORT"

// Paths in the guest.
const (
	Root       = "/rig"
	JobFile    = Root + "/job.json"
	TestBinary = Root + "/test"
	Binaries   = Root + "/bin"   // ours
	Peers      = Root + "/peers" // the plugins of others
	Modules    = Root + "/modules"
	LoadOrder  = Modules + "/order" // file names with parameters, one a line
	NICModule  = Modules + "/fakerdma.ko"
	SoftRoCE   = Modules + "/softroce"    // as LoadOrder, of modules that are loaded on demand
	Devices    = Modules + "/devices"     // as LoadOrder, of drivers for a machine's optional devices
	Functions  = Modules + "/functions"   // as LoadOrder, of the drivers for igb, vfio-pci among them
	NoSoftRoCE = Modules + "/no-softroce" // present in its place: why the rig has none
	Warned     = Root + "/warned"         // of a test that makes the kernel warn: the machine's end does not report it
)

// The NIC of a machine that reaches its host: its own address, and the one that
// represents the host's.
const (
	Address = "10.0.2.15/24"
	Reached = "10.0.2.100:6443"
)

const (
	headerSize = 3 // kind, length
	maxPayload = 1<<16 - 1
)

// Writer writes frames; its methods may be called from several goroutines.
type Writer struct {
	mu sync.Mutex
	w  io.Writer
}

// NewWriter makes a Writer on w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

func (w *Writer) frame(kind Kind, payload []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		part := payload[:min(len(payload), maxPayload)]
		header := binary.BigEndian.AppendUint16([]byte{byte(kind)}, uint16(len(part)))
		if _, err := w.w.Write(append(header, part...)); err != nil {
			return err
		}
		if payload = payload[len(part):]; len(payload) == 0 {
			return nil
		}
	}
}

// Stream returns a writer whose bytes go out as frames of one kind.
func (w *Writer) Stream(kind Kind) io.Writer { return stream{w, kind} }

type stream struct {
	w    *Writer
	kind Kind
}

func (s stream) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := s.w.frame(s.kind, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Send sends an event.
func (w *Writer) Send(e Event) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return w.frame(News, text)
}

// Frame is a received frame: output, or an event.
type Frame struct {
	Kind  Kind
	Bytes []byte
	Event Event // if Kind is News
}

// Reader reads frames.
type Reader struct{ r *bufio.Reader }

// NewReader makes a Reader on r.
func NewReader(r io.Reader) *Reader { return &Reader{bufio.NewReader(r)} }

// Next returns the next frame, or io.EOF after the last one.
func (r *Reader) Next() (Frame, error) {
	header := make([]byte, headerSize)
	if _, err := io.ReadFull(r.r, header); err != nil {
		return Frame{}, err
	}
	f := Frame{Kind: Kind(header[0]), Bytes: make([]byte, binary.BigEndian.Uint16(header[1:]))}
	if _, err := io.ReadFull(r.r, f.Bytes); err != nil {
		return Frame{}, fmt.Errorf("a frame was cut off: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	switch f.Kind {
	case Stdout, Stderr:
		return f, nil
	case News:
		if err := json.Unmarshal(f.Bytes, &f.Event); err != nil {
			return Frame{}, fmt.Errorf("event %q: %w", f.Bytes, err)
		}
		return f, nil
	}
	return Frame{}, fmt.Errorf("no frame begins with %q", header)
}
