package link

import (
	"encoding/binary"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// message builds the payload of a netlink message.
func message(header []byte, attrs ...nlattr.Attr) []byte { return nlattr.Marshal(header, attrs) }

func attr(typ uint16, value ...byte) nlattr.Attr { return nlattr.Attr{Type: typ, Value: value} }

func number32(typ uint16, v uint32) nlattr.Attr {
	return attr(typ, binary.NativeEndian.AppendUint32(nil, v)...)
}
