package netns

import (
	"bytes"
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
	"github.com/rail-cni/rail-cni/pkg/nlsocket"
)

// Exchange calls [nlsocket.Socket.Exchange] on the rtnetlink socket of n.
func (n *Netns) Exchange(req *nl.NetlinkRequest, each func(payload []byte)) error {
	return n.sockets[unix.NETLINK_ROUTE].Exchange(req, each)
}

// Execute sends a request to which the kernel answers only with an acknowledgment.
func (n *Netns) Execute(req *nl.NetlinkRequest) error { return n.Exchange(req, func([]byte) {}) }

// Request sends one message of this kind (RTM_…), which consists of a header and attributes. It adds NLM_F_ACK to flags.
// It returns the kernel's error.
func (n *Netns) Request(kind, flags int, header []byte, attrs nlattr.Attrs) error {
	req := nl.NewNetlinkRequest(kind, flags|unix.NLM_F_ACK)
	req.AddRawData(nlattr.Marshal(header, attrs))
	return n.Execute(req)
}

// Dump requests all objects of one kind. It returns the payloads for which wanted returns true.
// wanted must not keep its argument.
func (n *Netns) Dump(ask int, header nl.NetlinkRequestData, wanted func(payload []byte) bool) ([][]byte, error) {
	return dumpBy(n.Exchange, ask, wanted, header)
}

// DumpSelected is like [Netns.Dump], but the kernel sends only the objects that header and attrs select. A kernel that
// cannot select sends all objects, so wanted must select them as well.
func (n *Netns) DumpSelected(ask int, header nl.NetlinkRequestData, attrs nlattr.Attrs, wanted func(payload []byte) bool) ([][]byte, error) {
	data := []nl.NetlinkRequestData{header, nlsocket.RawHeader(nlattr.Marshal(nil, attrs))}
	found, err := dumpBy(n.sockets[unix.NETLINK_ROUTE].ExchangeStrictly, ask, wanted, data...)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return dumpBy(n.Exchange, ask, wanted, data...)
	}
	return found, err
}

func dumpBy(exchange func(*nl.NetlinkRequest, func([]byte)) error, ask int, wanted func(payload []byte) bool, data ...nl.NetlinkRequestData) ([][]byte, error) {
	return nlsocket.RetryDump(func() ([][]byte, error) {
		var found [][]byte
		req := nl.NewNetlinkRequest(ask, unix.NLM_F_DUMP)
		for _, d := range data {
			req.AddData(d)
		}
		err := exchange(req, func(m []byte) {
			if wanted(m) {
				found = append(found, bytes.Clone(m))
			}
		})
		return found, err
	})
}
