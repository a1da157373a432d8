package link

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// errNoFamily is wrapped if the kernel has no such generic netlink family.
var errNoFamily = errors.New("no such generic netlink family")

// ask sends one request to a generic netlink family, and returns the payloads
// of the answers behind their struct genlmsghdr.
func (d *device) ask(family string, command uint8, flags int, attrs nlattr.Attrs) ([]nlattr.Attrs, error) {
	id, err := d.familyID(family)
	if err != nil {
		return nil, err
	}
	req := genericRequest(id, command, flags|unix.NLM_F_ACK, attrs)
	var answers []nlattr.Attrs
	var damage error
	err = d.sockets[unix.NETLINK_GENERIC].Exchange(req, func(m []byte) {
		attrs, err := genericAnswer(m)
		damage = cmp.Or(damage, err)
		answers = append(answers, attrs)
	})
	if err = cmp.Or(err, damage); err != nil {
		return nil, err
	}
	return answers, nil
}

// answer is the answer to one of the commands of askAll.
type answer struct {
	attrs nlattr.Attrs
	err   error
}

// askAll sends commands of a generic netlink family, which have the same attributes and one
// answer each, by one system call.
func (d *device) askAll(family string, commands []uint8, attrs nlattr.Attrs) ([]answer, error) {
	id, err := d.familyID(family)
	if err != nil {
		return nil, err
	}
	reqs := make([]*nl.NetlinkRequest, len(commands))
	for i, command := range commands {
		reqs[i] = genericRequest(id, command, 0, attrs)
	}
	return d.askTogether(reqs)
}

func (d *device) askTogether(reqs []*nl.NetlinkRequest) ([]answer, error) {
	answers := make([]answer, len(reqs))
	errs, err := d.sockets[unix.NETLINK_GENERIC].exchangeAll(reqs, func(i int, m []byte) {
		answers[i].attrs, answers[i].err = genericAnswer(m)
	})
	for i, err := range errs {
		answers[i].err = cmp.Or(answers[i].err, err)
	}
	return answers, err
}

// families are the generic netlink families that requests to a device use.
var families = []string{ethtoolFamily, netdevFamily}

// familyID returns the number of a generic netlink family, or an error that wraps
// errNoFamily. It asks for all at once.
func (d *device) familyID(family string) (uint16, error) {
	if len(d.family) == 0 {
		reqs := make([]*nl.NetlinkRequest, len(families))
		for i, name := range families {
			attr := nlattr.Attr{Type: nl.GENL_CTRL_ATTR_FAMILY_NAME, Value: nl.ZeroTerminated(name)}
			reqs[i] = genericRequest(nl.GENL_ID_CTRL, nl.GENL_CTRL_CMD_GETFAMILY, 0, nlattr.Attrs{attr})
		}
		answers, err := d.askTogether(reqs)
		if err != nil {
			return 0, err
		}
		for i, a := range answers {
			if id, _ := a.attrs.Get(nl.GENL_CTRL_ATTR_FAMILY_ID); len(id) == 2 {
				d.family[families[i]] = binary.NativeEndian.Uint16(id)
			}
		}
	}
	if id := d.family[family]; id != 0 {
		return id, nil
	}
	return 0, errNoFamily
}

// genericHeader returns a struct genlmsghdr. The library's has two of its four bytes, and
// writes what lies behind it in memory as the rest, which the kernel refuses if it is not
// 0 (genl_header_check).
func genericHeader(command uint8) []byte { return []byte{command, 1, 0, 0} }

func genericRequest(id uint16, command uint8, flags int, attrs nlattr.Attrs) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(int(id), flags)
	req.AddRawData(nlattr.Marshal(genericHeader(command), attrs))
	return req
}

// genericAnswer returns the attributes of an answer.
func genericAnswer(m []byte) (nlattr.Attrs, error) {
	_, attrs, err := nlattr.ParseMessage(bytes.Clone(m), nl.SizeofGenlmsg) // the values point into it
	return attrs, err
}
