// Package nlattr reads and writes netlink attributes (struct nlattr, netlink(7)). They are
// used by rtnetlink, generic netlink and RDMA.
//
// The input may be malformed: a record can be edited, and a pod can make a link that the
// kernel describes wrongly. So the package never panics. It returns the attributes before
// the malformed one. In comparison, nl.ParseRouteAttr of vishvananda/netlink panics if the
// padding of the last attribute is missing ("05 00 01 00 09").
//
// To read a string attribute of a message:
//
//	_, attrs, err := nlattr.ParseMessage(m, unix.SizeofIfInfomsg)
//	name := attrs.Text(unix.IFLA_IFNAME)
package nlattr
