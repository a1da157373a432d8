package nlsocket

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// The generic netlink families that are known to [Socket.Ask] and [Socket.AskAll].
const (
	FamilyEthtool = "ethtool"
	FamilyNetdev  = "netdev"
)

// errNoFamily is wrapped if the kernel does not have the generic netlink family.
var errNoFamily = errors.New("no such generic netlink family")

// Ask sends one request to a generic netlink family. s must be a socket of generic netlink. Ask
// returns the attributes of each answer, which follow the answer's struct genlmsghdr.
func (s *Socket) Ask(family string, command uint8, flags int, attrs nlattr.Attrs) ([]nlattr.Attrs, error) {
	id, err := s.familyID(family)
	if err != nil {
		return nil, err
	}
	req := genericRequest(id, command, flags|unix.NLM_F_ACK, attrs)
	var answers []nlattr.Attrs
	var damage error
	err = s.Exchange(req, func(m []byte) {
		attrs, err := genericAnswer(m)
		damage = cmp.Or(damage, err)
		answers = append(answers, attrs)
	})
	if err = cmp.Or(err, damage); err != nil {
		return nil, err
	}
	return answers, nil
}

// Answer is the answer to one of the commands of [Socket.AskAll].
type Answer struct {
	Attrs nlattr.Attrs
	Err   error
}

// AskAll sends several commands to a generic netlink family in one system call. All commands have
// the same attributes, and each must have exactly one answer.
func (s *Socket) AskAll(family string, commands []uint8, attrs nlattr.Attrs) ([]Answer, error) {
	id, err := s.familyID(family)
	if err != nil {
		return nil, err
	}
	reqs := make([]*nl.NetlinkRequest, len(commands))
	for i, command := range commands {
		reqs[i] = genericRequest(id, command, 0, attrs)
	}
	return s.askTogether(reqs)
}

func (s *Socket) askTogether(reqs []*nl.NetlinkRequest) ([]Answer, error) {
	answers := make([]Answer, len(reqs))
	errs, err := s.exchangeAll(reqs, func(i int, m []byte) {
		answers[i].Attrs, answers[i].Err = genericAnswer(m)
	})
	for i, err := range errs {
		answers[i].Err = cmp.Or(answers[i].Err, err)
	}
	return answers, err
}

// families are the families whose numbers are requested by the first call of familyID.
var families = []string{FamilyEthtool, FamilyNetdev}

// familyID returns the number of a generic netlink family, or an error that wraps errNoFamily. The
// first call requests the numbers of all families at once.
func (s *Socket) familyID(family string) (uint16, error) {
	s.familiesMu.Lock()
	defer s.familiesMu.Unlock()
	if len(s.families) == 0 {
		reqs := make([]*nl.NetlinkRequest, len(families))
		for i, name := range families {
			attr := nlattr.Attr{Type: nl.GENL_CTRL_ATTR_FAMILY_NAME, Value: nl.ZeroTerminated(name)}
			reqs[i] = genericRequest(nl.GENL_ID_CTRL, nl.GENL_CTRL_CMD_GETFAMILY, 0, nlattr.Attrs{attr})
		}
		answers, err := s.askTogether(reqs)
		if err != nil {
			return 0, err
		}
		s.families = map[string]uint16{}
		for i, a := range answers {
			if id, _ := a.Attrs.Get(nl.GENL_CTRL_ATTR_FAMILY_ID); len(id) == 2 {
				s.families[families[i]] = binary.NativeEndian.Uint16(id)
			}
		}
	}
	if id := s.families[family]; id != 0 {
		return id, nil
	}
	return 0, errNoFamily
}

// genericHeader returns a struct genlmsghdr. The library's struct has only two of the four bytes.
// For the other two the library sends the bytes that follow the struct in memory, and the kernel
// refuses them if they are not 0 (genl_header_check).
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
