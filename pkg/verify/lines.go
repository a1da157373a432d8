package verify

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// ErrEnded is returned for a prober that has ended, or whose answers end.
var ErrEnded = errors.New("the prober ended")

// Lines is a prober at the end of two streams: a request is a line of one, its answer the next
// line of the other.
type Lines struct {
	mu    sync.Mutex
	stdin *json.Encoder
	out   *bufio.Scanner
}

// NewLines returns the prober. An answer has at most so many bytes.
func NewLines(in io.Writer, out io.Reader, most int) *Lines {
	l := &Lines{stdin: json.NewEncoder(in), out: bufio.NewScanner(out)}
	l.out.Buffer(nil, most)
	return l
}

// Do lets the prober answer a request. An error that is [ErrEnded] is for all later requests as
// well. The caller ends a call by closing the streams.
func (l *Lines) Do(r *Request) (*Answer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.stdin.Encode(r); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEnded, err)
	}
	if !l.out.Scan() {
		if err := l.out.Err(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrEnded, err)
		}
		return nil, ErrEnded
	}
	var a Answer
	if err := json.Unmarshal(l.out.Bytes(), &a); err != nil {
		return nil, fmt.Errorf("the prober's answer: %w", err)
	}
	if a.Error != "" {
		return nil, errors.New(a.Error[:min(len(a.Error), maxText)])
	}
	return &a, nil
}
