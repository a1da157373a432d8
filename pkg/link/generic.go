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
	id := d.family[family]
	if id == 0 {
		if id = d.familyID(family); id == 0 {
			return nil, errNoFamily
		}
		d.family[family] = id
	}
	return d.askFamily(id, command, flags, attrs)
}

// familyID returns the number of a generic netlink family, 0 if the kernel has
// none of this name.
func (d *device) familyID(family string) uint16 {
	name := nlattr.Attr{Type: nl.GENL_CTRL_ATTR_FAMILY_NAME, Value: nl.ZeroTerminated(family)}
	answers, err := d.askFamily(nl.GENL_ID_CTRL, nl.GENL_CTRL_CMD_GETFAMILY, 0, nlattr.Attrs{name})
	if err != nil || len(answers) != 1 {
		return 0
	}
	id, _ := answers[0].Get(nl.GENL_CTRL_ATTR_FAMILY_ID)
	if len(id) != 2 {
		return 0
	}
	return binary.NativeEndian.Uint16(id)
}

// genericHeader returns a struct genlmsghdr. The library's has two of its four bytes, and
// writes what lies behind it in memory as the rest, which the kernel refuses if it is not
// 0 (genl_header_check).
func genericHeader(command uint8) []byte { return []byte{command, 1, 0, 0} }

func (d *device) askFamily(id uint16, command uint8, flags int, attrs nlattr.Attrs) ([]nlattr.Attrs, error) {
	req := nl.NewNetlinkRequest(int(id), flags|unix.NLM_F_ACK)
	req.AddRawData(nlattr.Marshal(genericHeader(command), attrs))
	var answers []nlattr.Attrs
	var damage error
	err := d.sockets[unix.NETLINK_GENERIC].Exchange(req, func(m []byte) {
		_, attrs, err := nlattr.ParseMessage(bytes.Clone(m), nl.SizeofGenlmsg) // the values point into it
		damage = cmp.Or(damage, err)
		answers = append(answers, attrs)
	})
	if err = cmp.Or(err, damage); err != nil {
		return nil, err
	}
	return answers, nil
}
