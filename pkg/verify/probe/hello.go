package probe

import (
	"bytes"
	"context"
	"crypto/hmac"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/verify"
)

// These are the number, the times and the layout of broadcasts.
const (
	hellos      = 3
	helloWait   = 50 * time.Millisecond  // the time between two broadcasts
	receiveWait = 300 * time.Millisecond // how long to wait for the last broadcasts of other probers
	helloData   = 14 + 28                // the offset of our own data, which comes after the ARP message
	helloFrom   = 2 + 2 + 6 + 2          // the size of the data before the signature: the node, the rail, the rail's MAC and the number of the broadcast
)

// packetSocket receives the ARP frames of an interface.
type packetSocket struct {
	*os.File
}

// openPacket opens a packet socket of the link.
func openPacket(l *link.Link) (*packetSocket, error) {
	if l.Encap != "ether" || len(l.MAC) != 6 {
		return nil, errors.New("it is not an Ethernet interface")
	}
	// The protocol must be in network byte order.
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ARP))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(protocol))
	if err != nil {
		return nil, os.NewSyscallError("packet socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: l.Index}); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("bind a packet socket", err)
	}
	return &packetSocket{os.NewFile(uintptr(fd), "packet")}, nil
}

// helloFrame returns a broadcast. It is an ARP probe (RFC 5227, section 2.1.1) for the rail's own
// address. An ARP probe has no sender's address, so it changes no neighbor's table. After the ARP
// probe come the node, the rail, the rail's MAC, the number of the broadcast, and the signature of
// these.
func (p *Prober) helloFrame(rail, number int) []byte {
	const ethernet, request = 1, 1
	r := &p.rails[rail]
	be := binary.BigEndian
	frame := append(bytes.Repeat([]byte{0xff}, 6), r.link.MAC...)
	frame = be.AppendUint16(frame, unix.ETH_P_ARP)
	frame = be.AppendUint16(be.AppendUint16(frame, ethernet), unix.ETH_P_IP)
	frame = be.AppendUint16(append(frame, 6, 4), request)
	frame = append(append(frame, r.link.MAC...), 0, 0, 0, 0) // the sender
	addr := netip.IPv4Unspecified()
	if len(r.Addresses) > 0 && r.Addresses[0].Addr().Is4() {
		addr = r.Addresses[0].Addr()
	}
	frame = append(append(frame, 0, 0, 0, 0, 0, 0), addr.AsSlice()...)
	frame = be.AppendUint16(be.AppendUint16(frame, uint16(p.node)), uint16(rail))
	frame = be.AppendUint16(append(frame, r.link.MAC...), uint16(number))
	return append(frame, sign(p.token, frame[helloData:])...)
}

// sendHello sends the broadcasts of each rail.
func (p *Prober) sendHello(ctx context.Context) (*verify.Answer, error) {
	for number := range hellos {
		for i := range p.rails {
			if h := p.rails[i].hello; h != nil {
				_, _ = h.Write(p.helloFrame(i, number)) // a broadcast that cannot be sent is simply not received
			}
		}
		sleep(ctx, helloWait)
	}
	return &verify.Answer{}, ctx.Err()
}

// receive notes the broadcasts that arrive at a rail, until the rail's socket is closed.
func (p *Prober) receive(rail int) {
	frame := make([]byte, 256)
	for {
		n, err := p.rails[rail].hello.Read(frame)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil { // the interface went down, for example
			time.Sleep(helloWait)
			continue
		}
		p.take(rail, frame[:n])
	}
}

// take notes a frame that arrived at a rail, if it is a broadcast of this run.
func (p *Prober) take(rail int, frame []byte) {
	const end = helloData + helloFrom + signatureSize
	if len(frame) < end {
		return
	}
	from, signature := frame[helloData:helloData+helloFrom], frame[helloData+helloFrom:end]
	if !hmac.Equal(signature, sign(p.token, from)) {
		return
	}
	h := verify.Broadcast{Rail: rail, Node: int(binary.BigEndian.Uint16(from)), FromRail: int(binary.BigEndian.Uint16(from[2:]))}
	if h.Node == p.node {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// Everybody in the rail's network can receive a broadcast and send it again. A repeated
	// broadcast has another source than the MAC in its signed data, or it arrives twice.
	once := reception{h, binary.BigEndian.Uint16(from[10:])}
	h.Repeated = p.numbers[once] || !bytes.Equal(frame[6:12], from[4:10])
	if len(p.received) < verify.MaxReceived && len(p.numbers) < hellos*verify.MaxReceived {
		p.received[h], p.numbers[once] = true, true
	}
}

// reception identifies one broadcast that a rail received.
type reception struct {
	verify.Broadcast
	number uint16
}

// reportReceived waits for the last broadcasts, and returns all broadcasts that arrived.
func (p *Prober) reportReceived(ctx context.Context) (*verify.Answer, error) {
	sleep(ctx, receiveWait)
	p.mu.Lock()
	defer p.mu.Unlock()
	a := &verify.Answer{}
	for h := range p.received {
		a.Received = append(a.Received, h)
	}
	return a, ctx.Err()
}

// sleep waits until d has passed or ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
