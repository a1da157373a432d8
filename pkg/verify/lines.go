package verify

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// ErrEnded is the error if a prober has ended, or if its stream of answers has ended.
var ErrEnded = errors.New("the prober ended")

// Lines is a prober that is reached by two streams. Each request is a line in one stream, and its
// answer is the next line of the other stream.
type Lines struct {
	mu    sync.Mutex
	stdin *json.Encoder
	out   *bufio.Scanner
}

// NewLines returns a prober that gets requests on in and answers on out. The maximum size of an
// answer is maxLine bytes.
func NewLines(in io.Writer, out io.Reader, maxLine int) *Lines {
	l := &Lines{stdin: json.NewEncoder(in), out: bufio.NewScanner(out)}
	l.out.Buffer(nil, maxLine)
	return l
}

// Do sends a request to the prober and returns the answer. If the error wraps [ErrEnded], all later
// requests will fail as well. To end a call, the caller closes the streams.
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
