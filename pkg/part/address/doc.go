// Package address has the parts of an attachment that give its interface
// addresses: [Ask] and [Await] have them from the configuration's IPAM plugin, and
// [Interface] puts them on the link and sets it up.
//
// An address is asked for while the link is made. It is freed by [Ask], by the
// record alone.
package address
