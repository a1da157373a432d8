package nlattr

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// ErrMalformed is returned for bytes that are not attributes.
var ErrMalformed = errors.New("malformed netlink message")

// flags are the bits of the kernel's nla_type that are not the type.
const flags = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER

// Attr is one attribute.
type Attr struct {
	Type  uint16
	Flags uint16 // NLA_F_*
	Value []byte
}

// Attrs are the attributes of a message, or the attributes nested in another attribute.
type Attrs []Attr

// Parse reads attributes. Their values point into b. If an attribute is malformed, Parse
// returns the attributes before it, and an error.
func Parse(b []byte) (Attrs, error) {
	var attrs Attrs
	for len(b) >= unix.SizeofRtAttr {
		length := int(binary.NativeEndian.Uint16(b))
		if length < unix.SizeofRtAttr || length > len(b) {
			return attrs, ErrMalformed
		}
		typ := binary.NativeEndian.Uint16(b[2:])
		attrs = append(attrs, Attr{Type: typ &^ flags, Flags: typ & flags, Value: b[unix.SizeofRtAttr:length]})
		b = b[min(Align(length), len(b)):]
	}
	return attrs, nil
}

// ParseMessage splits the payload of a message into its header of size bytes and its
// attributes. If an attribute is malformed, it returns the same as [Parse]. The header is
// nil if m is shorter than size.
func ParseMessage(m []byte, size int) (header []byte, attrs Attrs, err error) {
	if len(m) < size {
		return nil, nil, ErrMalformed
	}
	attrs, err = Parse(m[min(Align(size), len(m)):])
	return m[:size], attrs, err
}

// Marshal returns a header followed by the attributes. It is the inverse of [ParseMessage].
func Marshal(header []byte, attrs Attrs) []byte {
	m := append([]byte(nil), header...)
	for _, a := range attrs {
		m = append(m, make([]byte, Align(len(m))-len(m))...)
		m = binary.NativeEndian.AppendUint16(m, uint16(unix.SizeofRtAttr+len(a.Value)))
		m = binary.NativeEndian.AppendUint16(m, a.Type|a.Flags)
		m = append(m, a.Value...)
	}
	return m
}

// Align returns n if an attribute may begin at the offset n. Otherwise it returns the next
// offset at which one may begin.
func Align(n int) int { return (n + unix.RTA_ALIGNTO - 1) &^ (unix.RTA_ALIGNTO - 1) }

// Get returns the value of the first attribute of a type, and reports whether there is such
// an attribute.
func (a Attrs) Get(typ uint16) ([]byte, bool) {
	for _, one := range a {
		if one.Type == typ {
			return one.Value, true
		}
	}
	return nil, false
}

// Uint32 returns the number in the first attribute of a type. It returns false if there is
// no such attribute, or if its value does not have 32 bits.
func (a Attrs) Uint32(typ uint16) (uint32, bool) {
	if v, _ := a.Get(typ); len(v) == 4 {
		return binary.NativeEndian.Uint32(v), true
	}
	return 0, false
}

// Uint is like [Attrs.Uint32], for numbers of 8 to 64 bits.
func (a Attrs) Uint(typ uint16) (uint64, bool) {
	switch v, _ := a.Get(typ); len(v) {
	case 1:
		return uint64(v[0]), true
	case 2:
		return uint64(binary.NativeEndian.Uint16(v)), true
	case 4:
		return uint64(binary.NativeEndian.Uint32(v)), true
	case 8:
		return binary.NativeEndian.Uint64(v), true
	}
	return 0, false
}

// Text returns the string in the first attribute of a type, up to its NUL. It returns "" if
// there is no such attribute.
func (a Attrs) Text(typ uint16) string {
	v, _ := a.Get(typ)
	return unix.ByteSliceToString(v)
}

// Nested returns the attributes in the first attribute of a type.
func (a Attrs) Nested(typ uint16) (Attrs, error) {
	v, _ := a.Get(typ)
	return Parse(v)
}

// Without returns the attributes whose type is not one of types.
func (a Attrs) Without(types ...uint16) Attrs {
	var kept Attrs
next:
	for _, one := range a {
		for _, t := range types {
			if one.Type == t {
				continue next
			}
		}
		kept = append(kept, one)
	}
	return kept
}

// Int returns the 32-bit number in the first attribute of a type, or 0 if there is no such
// number.
func (a Attrs) Int(typ uint16) int {
	n, _ := a.Uint32(typ)
	return int(n)
}

// IsIP reports whether the message with this header is about IPv4 or IPv6. All headers of
// rtnetlink about addresses, routes, rules and neighbors begin with the address family.
func IsIP(header []byte) bool { return header[0] == unix.AF_INET || header[0] == unix.AF_INET6 }
