package link

import (
	"encoding/binary"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzParseLink reads descriptions of links with parts that a pod has written.
func FuzzParseLink(f *testing.F) {
	header := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(header[4:], 7)
	name := attr(unix.IFLA_IFNAME, []byte("net1\x00\x00\x00\x00")...) // padded, so that more can follow
	f.Add([]byte{})
	f.Add(message(header, name, number32(unix.IFLA_MTU, 9000), attr(unix.IFLA_ADDRESS, 2, 0, 0, 0, 0, 1)))
	f.Add(message(header, name, attr(unix.IFLA_PROP_LIST, message(nil, attr(unix.IFLA_ALT_IFNAME, []byte("other\x00")...))...)))
	f.Add(message(header, name, attr(unix.IFLA_LINKINFO, message(nil, attr(unix.IFLA_INFO_KIND, []byte("macvlan\x00")...),
		attr(unix.IFLA_INFO_DATA, 8, 0, 1, 0, 4, 0, 0, 0, 3, 0, 4, 0))...)))
	f.Fuzz(func(t *testing.T, m []byte) {
		whole := parseLink(m)
		if whole.Damage == nil && len(m) < unix.SizeofIfInfomsg {
			t.Fatalf("%x makes a link: %+v", m, whole)
		}
		// Attributes after a link's name cannot change it.
		named := parseLink(append(message(header, name), m...))
		if named.Name != "net1" || named.Index != 7 {
			t.Fatalf("%x makes another link of net1: %+v", m, named)
		}
		for _, text := range append(whole.Names(), whole.Alias, whole.Kind, whole.ParentDev, whole.ParentBus) {
			if strings.ContainsRune(text, 0) {
				t.Fatalf("%x: a NUL in %q", m, text)
			}
		}
	})
}
