package probe

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/verify"
)

// maxLine is the maximum length of a line of the protocol, in bytes.
const maxLine = 64 << 20

// Serve reads requests from in, one on each line, and writes the answers to out. It returns when in
// ends or cannot be read. If idle is not 0, it also returns when no request has come for that time.
// It measures in the network namespace of the calling process. When Serve returns, a Read of in may
// still be under way.
func Serve(ctx context.Context, in io.Reader, out io.Writer, idle time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := &Prober{}
	defer p.Close()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	requests, ended := make(chan []byte), make(chan error, 1)
	go func() {
		defer close(requests)
		for lines.Scan() {
			select {
			case requests <- slices.Clone(lines.Bytes()):
			case <-ctx.Done():
				return
			}
		}
		ended <- lines.Err()
		cancel() // nobody waits for the result of a measurement any longer
	}()
	var silence <-chan time.Time // a nil channel blocks forever
	answers := json.NewEncoder(out)
	for {
		if idle > 0 {
			silence = time.After(idle)
		}
		select {
		case line, ok := <-requests:
			if !ok {
				return <-ended
			}
			if err := answers.Encode(p.answer(ctx, line)); err != nil {
				return err
			}
		case <-silence:
			return fmt.Errorf("no request for %s", idle)
		}
	}
}

// answer returns the answer to a line.
func (p *Prober) answer(ctx context.Context, line []byte) *verify.Answer {
	var r verify.Request
	a := &verify.Answer{}
	err := json.Unmarshal(line, &r)
	if err == nil {
		a, err = p.Do(ctx, &r)
	}
	if err != nil {
		a = &verify.Answer{Error: err.Error()}
	}
	return a
}

// Prober is a prober in the network namespace of this process. The zero value is ready to use.
// Close closes its sockets.
type Prober struct {
	netns *netns.Netns
	token [8]byte
	node  int
	rails []rail
	ended sync.WaitGroup

	mu       sync.Mutex
	seen     map[uint32]map[uint32]*arrival // by the flow and the number of the probe
	reported map[uint32]bool                // the flows that have been reported
	received map[verify.Broadcast]bool
	numbers  map[reception]bool

	servers []func() // each ends a server of an RDMA test
}

// rail is an interface under test.
type rail struct {
	verify.Interface
	link       *link.Link
	responders []*socket
	hello      *packetSocket // nil if the socket cannot be opened
}

// Do answers a request. Concurrent requests are answered one after another.
func (p *Prober) Do(ctx context.Context, r *verify.Request) (*verify.Answer, error) {
	switch {
	case r.Alive:
		return &verify.Answer{}, nil
	case r.Open != nil:
		return p.open(r.Open)
	case p.netns == nil:
		return nil, errors.New("the first request must be \"open\"")
	case r.Hello:
		return p.sendHello(ctx)
	case r.Received:
		return p.reportReceived(ctx)
	case r.Flows != nil:
		return p.measure(ctx, r.Flows)
	case r.RDMA != nil:
		return p.rdmaTests(ctx, r.RDMA)
	case r.Report != nil:
		return p.report(ctx, r.Report, leaveWait), nil
	}
	return nil, errors.New("the request has none of \"open\", \"hello\", \"heard\", \"flows\", \"report\", \"rdma\", \"alive\"")
}

// Close ends the sockets.
func (p *Prober) Close() {
	p.endServers()
	for i := range p.rails {
		for _, s := range p.rails[i].responders {
			s.Close()
		}
		if h := p.rails[i].hello; h != nil {
			h.Close()
		}
	}
	p.ended.Wait()
	p.netns.Close()
	p.netns, p.rails = nil, nil
}

// open finds the interfaces, and starts to answer probes and to hear broadcasts.
func (p *Prober) open(o *verify.Open) (*verify.Answer, error) {
	if p.netns != nil {
		return nil, errors.New("a second \"open\" was received; a connection may send only one")
	}
	n, err := netns.Current()
	if err != nil {
		return nil, err
	}
	p.netns, p.node = n, o.Node
	binary.BigEndian.PutUint64(p.token[:], o.Token)
	p.seen, p.reported, p.received = map[uint32]map[uint32]*arrival{}, map[uint32]bool{}, map[verify.Broadcast]bool{}
	p.numbers = map[reception]bool{}
	links, err := link.Links(n)
	if err != nil {
		return nil, err
	}
	a := &verify.Answer{}
	names := o.Interfaces
	if len(names) == 0 {
		names = netNames(links)
	}
	p.rails = make([]rail, len(names))
	for i, name := range names {
		r := &p.rails[i]
		r.Name = name
		if k := slices.IndexFunc(links, func(l *link.Link) bool { return l.Name == name }); k >= 0 {
			r.link = links[k]
			p.begin(i)
		} else {
			r.Problem = "there is no interface with this name"
		}
		a.Opened = append(a.Opened, r.Interface)
	}
	return a, nil
}

var netName = regexp.MustCompile(`^net([0-9]{1,6})$`)

// netNames returns the names of the interfaces that are called net1, net2 and so on, sorted by
// number. Multus uses these names.
func netNames(links []*link.Link) (names []string) {
	number := map[string]int{}
	for _, l := range links {
		if m := netName.FindStringSubmatch(l.Name); m != nil {
			number[l.Name], _ = strconv.Atoi(m[1])
			names = append(names, l.Name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return number[a] - number[b] })
	return names
}

// maxAddresses is the maximum number of addresses of an interface that are considered.
const maxAddresses = 64

// begin starts the responders and the receiver of a rail.
func (p *Prober) begin(i int) {
	r := &p.rails[i]
	l := r.link
	r.MTU, r.Up, r.Carrier, r.MAC = l.MTU, l.IsUp(), l.HasCarrier(), l.MAC.String()
	switch {
	case !r.Up:
		r.Problem = "it is down"
		return
	case !r.Carrier:
		r.Problem = "it has no carrier"
		return
	}
	nets, err := link.SomeAddresses(p.netns, l.Index, maxAddresses)
	if err != nil {
		r.Problem = err.Error()
		return
	}
	var found []netip.Addr // at most one address of each family, IPv4 first
	for _, is4 := range []bool{true, false} {
		for _, n := range nets {
			if a, ok := netip.AddrFromSlice(n.IP); ok && a.Unmap().Is4() == is4 && !a.IsLinkLocalUnicast() {
				found = append(found, a.Unmap())
				break
			}
		}
	}
	if len(found) == 0 {
		r.Problem = "it has no address"
	}
	for _, a := range found {
		s, err := listen(r.Name, a)
		if err != nil {
			r.Problem = fmt.Sprintf("a socket with its address %s: %v", a, err)
			continue
		}
		r.responders = append(r.responders, s)
		r.Addresses = append(r.Addresses, s.address())
		p.ended.Go(func() { p.respond(s) })
	}
	if len(r.Addresses) > 0 {
		r.Problem = ""
	}
	if r.hello, err = openPacket(l); err != nil {
		r.Deaf = strings.TrimSpace(err.Error())
		return
	}
	p.ended.Go(func() { p.receive(i) })
}
