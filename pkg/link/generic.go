package link

import (
	"encoding/binary"
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// openGeneric opens a generic netlink socket in the calling thread's namespace,
// which is n.
func (n *Netns) openGeneric() error {
	if n.socket[unix.NETLINK_GENERIC] != nil {
		return nil
	}
	s, err := Dial(unix.NETLINK_GENERIC)
	if err != nil {
		return err
	}
	n.socket[unix.NETLINK_GENERIC] = s
	return nil
}

// errNoFamily is wrapped when the kernel has no such generic netlink family.
var errNoFamily = errors.New("no such generic netlink family")

// ask sends one request to a generic netlink family, and returns the payloads
// of the answers behind their struct genlmsghdr.
func (d *device) ask(family string, command uint8, flags int, attrs attributes) ([]attributes, error) {
	id, ok := d.family[family]
	if !ok {
		id = d.familyID(family)
		d.family[family] = id
	}
	if id == 0 {
		return nil, errNoFamily
	}
	return d.askFamily(id, command, flags, attrs)
}

// familyID returns the number of a generic netlink family, 0 if the kernel has
// none of this name.
func (d *device) familyID(family string) uint16 {
	name := attribute{kind: nl.GENL_CTRL_ATTR_FAMILY_NAME, value: nl.ZeroTerminated(family)}
	answers, err := d.askFamily(nl.GENL_ID_CTRL, nl.GENL_CTRL_CMD_GETFAMILY, 0, attributes{name})
	if err != nil || len(answers) != 1 {
		return 0
	}
	id, _ := answers[0].get(nl.GENL_CTRL_ATTR_FAMILY_ID)
	if len(id) != 2 {
		return 0
	}
	return binary.NativeEndian.Uint16(id)
}

func (d *device) askFamily(id uint16, command uint8, flags int, attrs attributes) ([]attributes, error) {
	req := d.request(int(id), flags|unix.NLM_F_ACK)
	req.AddRawData(marshal((&nl.Genlmsg{Command: command, Version: 1}).Serialize(), attrs))
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, err
	}
	answers := make([]attributes, 0, len(msgs))
	for _, m := range msgs {
		_, attrs, err := parseMessage(m, nl.SizeofGenlmsg)
		if err != nil {
			return nil, err
		}
		answers = append(answers, attrs)
	}
	return answers, nil
}

func uintOf(attrs attributes, kind uint16) (uint64, bool) {
	switch v, _ := attrs.get(kind); len(v) {
	case 1:
		return uint64(v[0]), true
	case 4:
		return uint64(binary.NativeEndian.Uint32(v)), true
	case 8:
		return binary.NativeEndian.Uint64(v), true
	}
	return 0, false
}
