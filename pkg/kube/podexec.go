package kube

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha1" // RFC 6455 has it, and not for security
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/client-go/transport"
)

// This file runs programs in containers. Source: the channels of Kubernetes' protocol
// v4.channel.k8s.io over a WebSocket (k8s.io/apimachinery/pkg/util/httpstream/wsstream), and RFC
// 6455. client-go's own client (tools/remotecommand) would bring SPDY and the types of all API
// objects to each program that imports this package.

const (
	execProtocol  = "v4.channel.k8s.io"
	webSocketGUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11" // RFC 6455, section 1.3
	mostErrText   = 4 << 10                                // bytes of stderr in an error
	mostControl   = 125                                    // bytes of a control frame (section 5.5)
	mostFrame     = 32 << 20                               // bytes of one frame; the kubelet's have at most 32 KiB
)

// The channels of execProtocol: the first byte of each message.
const (
	stdoutChannel = 1
	stderrChannel = 2
	statusChannel = 3
)

// The opcodes of RFC 6455, section 5.2.
const (
	continuation = 0x0
	binaryFrame  = 0x2
	closeFrame   = 0x8
	pingFrame    = 0x9
	pongFrame    = 0xa
)

// Exec runs a program in a container of a running pod, without stdin, and writes what it prints
// to out. It returns an error if the program's exit code is not 0, with the end of its stderr.
// It needs the right to get pods/exec, and to create it since Kubernetes 1.35. It is not
// repeated. An error of out ends it, and is returned.
func (c *Client) Exec(ctx context.Context, namespace, pod, container string, command []string, out io.Writer) error {
	q := request{
		verb: "get", method: http.MethodGet, resource: Resource{Version: "v1", Plural: "pods", Namespace: namespace}, name: pod, sub: "exec",
		query: url.Values{"command": command, "container": {container}, "stdout": {"true"}, "stderr": {"true"}}, accept: "*/*",
	}
	stream, failed := c.upgrade(ctx, q)
	if failed != nil {
		return c.explain(q, failed)
	}
	defer stream.Close()
	defer context.AfterFunc(ctx, func() { _ = stream.Close() })()
	s := &execStream{in: bufio.NewReader(stream), answer: stream, out: out}
	if err := s.run(); err != nil {
		return fmt.Errorf("%s in pod %s/%s: %w", strings.Join(command, " "), namespace, pod, because(ctx, err))
	}
	return nil
}

// upgrade sends the request for a WebSocket, and returns its stream. HTTP/2 has no upgrades, so
// the connection is not one of the client's other requests.
func (c *Client) upgrade(ctx context.Context, q request) (io.ReadWriteCloser, *Error) {
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // it never fails
	key := base64.StdEncoding.EncodeToString(nonce[:])
	sent, err := c.build(ctx, q)
	var round http.RoundTripper
	if err == nil {
		round, err = c.forUpgrades()
	}
	if err != nil {
		failed := c.failure(q, err)
		failed.final = true
		return nil, failed
	}
	for name, value := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key, "Sec-WebSocket-Protocol": execProtocol,
	} {
		sent.Header.Set(name, value)
	}
	answer, err := round.RoundTrip(sent)
	if err != nil {
		return nil, c.failure(q, because(ctx, err))
	}
	if answer.StatusCode != http.StatusSwitchingProtocols {
		defer answer.Body.Close()
		return nil, c.refusal(ctx, q, answer)
	}
	stream, ok := answer.Body.(io.ReadWriteCloser)
	accepted := sha1.Sum([]byte(key + webSocketGUID))
	if !ok || answer.Header.Get("Sec-WebSocket-Accept") != base64.StdEncoding.EncodeToString(accepted[:]) || answer.Header.Get("Sec-WebSocket-Protocol") != execProtocol {
		_ = answer.Body.Close()
		return nil, c.notAPIServer(q, answer, errors.New("the answer is no WebSocket of an API server"))
	}
	return stream, nil
}

// forUpgrades returns a transport without HTTP/2, whose connections are closed after use.
func (c *Client) forUpgrades() (http.RoundTripper, error) {
	loaded, err := c.config.load()
	if err != nil {
		return nil, err
	}
	loaded.transport.TLS.NextProtos = []string{"http/1.1"}
	return transport.New(loaded.transport) // client-go keeps one for each configuration
}

// execStream reads the messages of the server.
type execStream struct {
	in     *bufio.Reader
	answer io.Writer // for pongs
	out    io.Writer
	stderr tail
	begun  bool // a message whose frames are not all read
	to     byte // its channel
	status []byte
}

// run reads until the server tells the program's exit.
func (s *execStream) run() error {
	for {
		final, opcode, length, err := s.header()
		if err != nil {
			return fmt.Errorf("the connection broke off: %w", err)
		}
		frame := io.LimitReader(s.in, length)
		switch opcode {
		case binaryFrame, continuation:
			done, err := s.data(frame, opcode, final)
			if done || err != nil {
				return err
			}
		case pingFrame:
			payload, err := io.ReadAll(frame)
			if err == nil {
				err = s.send(pongFrame, payload)
			}
			if err != nil {
				return err
			}
		case pongFrame:
		case closeFrame:
			return errors.New("the server closed the connection before the program ended")
		default:
			return fmt.Errorf("unexpected frame of type %d", opcode)
		}
		if _, err := io.Copy(io.Discard, frame); err != nil {
			return err
		}
	}
}

// header reads the header of a frame. A server does not mask its frames (section 5.1).
func (s *execStream) header() (final bool, opcode byte, length int64, err error) {
	var first [2]byte
	if _, err := io.ReadFull(s.in, first[:]); err != nil {
		return false, 0, 0, err
	}
	final, opcode, length = first[0]&0x80 != 0, first[0]&0xf, int64(first[1]&0x7f)
	if first[0]&0x70 != 0 || first[1]&0x80 != 0 {
		return false, 0, 0, errors.New("a frame with extensions or a mask")
	}
	if opcode >= closeFrame && (length > mostControl || !final) {
		return false, 0, 0, errors.New("a control frame that is too long")
	}
	size := map[int64]int{126: 2, 127: 8}[length]
	if size == 0 {
		return final, opcode, length, nil
	}
	var more [8]byte
	if _, err := io.ReadFull(s.in, more[8-size:]); err != nil {
		return false, 0, 0, err
	}
	n := binary.BigEndian.Uint64(more[:])
	if n > mostFrame {
		return false, 0, 0, fmt.Errorf("a frame of %d bytes", n)
	}
	return final, opcode, int64(n), nil
}

// data reads a frame of a message. It reports whether the message was the program's exit.
func (s *execStream) data(frame io.Reader, opcode byte, final bool) (done bool, err error) {
	if opcode == continuation != s.begun {
		return false, errors.New("a message begins within another")
	}
	if opcode == binaryFrame {
		var channel [1]byte
		switch _, err := io.ReadFull(frame, channel[:]); {
		case errors.Is(err, io.EOF): // an empty message
			return false, nil
		case err != nil:
			return false, err
		}
		s.to = channel[0]
	}
	s.begun = !final
	switch s.to {
	case stdoutChannel:
		_, err = io.Copy(s.out, frame)
	case stderrChannel:
		_, err = io.Copy(&s.stderr, frame)
	case statusChannel:
		var text []byte
		text, err = io.ReadAll(io.LimitReader(frame, mostErrText))
		if s.status = append(s.status, text...); err == nil && final && len(s.status) > 0 {
			return true, s.exit()
		}
	}
	return false, err
}

// exit returns the error in the program's status, nil for exit code 0.
func (s *execStream) exit() error {
	var status struct {
		Status  string `json:"status"`
		Message string `json:"message"`
	}
	if err := json.Unmarshal(s.status, &status); err != nil {
		return fmt.Errorf("its status is not JSON: %w", err)
	}
	if status.Status == "Success" {
		return nil
	}
	message := status.Message
	if said := strings.TrimSpace(string(s.stderr.last)); said != "" {
		message += ": " + said
	}
	return errors.New(message)
}

// send sends a control frame, masked as a client's must be (section 5.3).
func (s *execStream) send(opcode byte, payload []byte) error {
	frame := []byte{0x80 | opcode, 0x80 | byte(len(payload))}
	var mask [4]byte
	_, _ = rand.Read(mask[:]) // it never fails
	frame = append(frame, mask[:]...)
	for i, b := range payload {
		frame = append(frame, b^mask[i%4])
	}
	_, err := s.answer.Write(frame)
	return err
}

// tail keeps the end of what is written.
type tail struct{ last []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.last = append(t.last, p...)
	if more := len(t.last) - mostErrText; more > 0 {
		t.last = append([]byte(nil), t.last[more:]...)
	}
	return len(p), nil
}
