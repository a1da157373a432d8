// Package address has the parts of an attachment that give its interface
// addresses: [Ask] and [Await] get them from the configuration's IPAM plugin, and
// [Interface] puts them on the link and sets it up.
//
// The IPAM plugin runs while the link is made: [Ask] starts it, and [Await] takes its
// answer. Ask also frees the addresses, by the record alone.
package address
