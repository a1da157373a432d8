package verbs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// End is one of the two ends.
type End struct {
	Netns   string // name, as for `ip netns exec`
	Device  string // RDMA device that it has there
	GID     int    // index of its GID
	Address string // at which the other end finds it, by TCP and with that GID
}

// limit bounds one conversation.
const limit = time.Minute

// port is the TCP port on which the server sends its memory's address: the
// default of both programs.
const port = 18515

// PingPong has both ends write to each other in turn and returns the client's
// last line, which has the time of one turn.
func PingPong(ctx context.Context, turns int, server, client End) (string, error) {
	out, err := converse(ctx, server, client, "ibv_rc_pingpong", "-n", strconv.Itoa(turns), "-g")
	if err != nil {
		return "", err
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1], nil
}

// Bandwidth has the client write a number of messages of 64 KiB into the
// server's memory and returns the average of ib_write_bw over all messages, in
// Gbit/s.
func Bandwidth(ctx context.Context, messages int, server, client End) (float64, error) {
	out, err := converse(ctx, server, client, "ib_write_bw", "-n", strconv.Itoa(messages), "-s", "65536", "-F", "-x")
	if err != nil {
		return 0, err
	}
	return Average(out)
}

// Average returns the average bandwidth in the output of ib_write_bw with messages of
// 64 KiB, in Gbit/s.
func Average(out string) (float64, error) {
	// #bytes  #iterations  BW peak[MB/sec]  BW average[MB/sec]  MsgRate[Mpps],
	// where an MB is 2^20 bytes. It can say Gbit/s, but then with two digits.
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 5 && f[0] == "65536" {
			mebi, err := strconv.ParseFloat(f[3], 64)
			return mebi * (1 << 20) * 8 / 1e9, err
		}
	}
	return 0, fmt.Errorf("ib_write_bw printed no bandwidth:\n%s", out)
}

// converse runs a program twice and returns the client's output. The last
// option is the one for the GID's index.
func converse(ctx context.Context, server, client End, program ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var output [2]bytes.Buffer
	command := func(i int, e End, more ...string) *exec.Cmd {
		words := append([]string{"netns", "exec", e.Netns}, program...)
		words = append(words, strconv.Itoa(e.GID), "-d", e.Device, "-p", strconv.Itoa(port))
		c := exec.CommandContext(ctx, "ip", append(words, more...)...)
		c.Stdout, c.Stderr = &output[i], &output[i]
		return c
	}
	s, c := command(0, server), command(1, client, server.Address)
	if err := s.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Wait() }()
	err := listening(ctx, s.Process.Pid, ended)
	if err == nil {
		err = c.Run()
	}
	if err != nil {
		cancel() // the server waits forever
	}
	if err := errors.Join(err, <-ended); err != nil {
		return "", fmt.Errorf("%s: %w\nserver:\n%s\nclient:\n%s", program[0], err, output[0].Bytes(), output[1].Bytes())
	}
	return output[1].String(), nil
}

// listening waits until the netns of a process has a listener on the port. It
// returns the error of a program that has ended meanwhile, and puts it back
// into ended.
func listening(ctx context.Context, pid int, ended chan error) error {
	for {
		if Listens(pid) {
			return nil
		}
		select {
		case err := <-ended:
			ended <- err
			return errors.New("the server ended before there was a client")
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Listens reports whether there is a listener on the programs' port in the netns of a
// process.
func Listens(pid int) bool {
	listener := fmt.Sprintf(":%04X", port)
	for _, family := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, family))
		if err != nil {
			continue // it has ended, or there is no IPv6
		}
		for line := range strings.Lines(string(text)) {
			// "sl local_address rem_address st", and 0A is TCP_LISTEN.
			if f := strings.Fields(line); len(f) > 3 && f[3] == "0A" && strings.HasSuffix(f[1], listener) {
				return true
			}
		}
	}
	return false
}
