package wire_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/rig/wire"
)

func TestWhatIsWrittenIsRead(t *testing.T) {
	var line bytes.Buffer
	w := wire.NewWriter(&line)
	long := strings.Repeat("x", 200_000)
	for _, step := range []error{
		w.Send(wire.Event{Name: wire.Booted, Uptime: 1.5}),
		write(w.Stream(wire.Stdout), long),
		write(w.Stream(wire.Stderr), "oops"),
		w.Send(wire.Event{Name: wire.Ended, Code: 2, Taint: 4096}),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	out := map[wire.Kind]string{}
	var events []wire.Event
	r := wire.NewReader(&line)
	for {
		f, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if f.Kind == wire.News {
			events = append(events, f.Event)
			continue
		}
		out[f.Kind] += string(f.Bytes)
	}
	if out[wire.Stdout] != long || out[wire.Stderr] != "oops" {
		t.Errorf("read %d bytes of stdout, and stderr %q", len(out[wire.Stdout]), out[wire.Stderr])
	}
	if len(events) != 2 || events[0].Uptime != 1.5 || events[1].Code != 2 || events[1].Taint != 4096 {
		t.Errorf("events: %+v", events)
	}
}

func write(w io.Writer, text string) error {
	_, err := io.WriteString(w, text)
	return err
}

func TestBrokenLinesAreErrors(t *testing.T) {
	for name, text := range map[string]string{
		"garbage":      "SeaBIOS (version 1)",
		"cut off":      "o\x00\x05ab",
		"no event":     "n\x00\x02[]",
		"half a start": "o\x00",
	} {
		t.Run(name, func(t *testing.T) {
			if f, err := wire.NewReader(strings.NewReader(text)).Next(); err == nil || errors.Is(err, io.EOF) {
				t.Errorf("read %+v, %v", f, err)
			}
		})
	}
}
