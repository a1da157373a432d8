// Package local is the address store that needs no server: files on the node.
// It is for one machine; two nodes that use it hand out the same addresses.
//
// Below "<state directory>/ipam" lies a directory per address space ("space",
// or "space-<network_name>"), and in it one per pool:
//
//	space/
//	  10.0.0.0_24/                     the pool of 10.0.0.0/24
//	    pool.json                      what the directory is
//	    10.0.0.2.json                  who holds 10.0.0.2: the record
//	    by-pod/default%2Fweb-0@net1    -> ../10.0.0.2.json
//	    by-attachment/3f2a…@net1       -> ../10.0.0.2.json
//	    map-10.0.0.0                   which addresses are probably taken, as bits
//	    lock, busy
//	  reserved/10.0.0.2                -> ../10.0.0.0_24/10.0.0.2.json
//
// Only the record counts: an address is taken while its record exists. The
// links find a record by its owner and are believed only if the record says
// the same. The map makes the choice of an address cheap: it is looked up
// before the records, and may be wrong only in calling a taken address free,
// which costs one look at a record and is corrected. It is rebuilt before
// anyone is told that a pool is exhausted. A reservation keeps an address from
// the other pools of its address space.
//
// A process may be killed between any two system calls. The order of the
// writes sees to it that what it leaves is either of no account (a link to no
// record) or is found and finished by the next ADD or DEL of the same owner:
//
//	ADD: links, record, reservation, bit      DEL: bit, reservation, record, links
//
// Whoever changes a pool holds its lock, and marks it busy meanwhile. Who
// finds the mark knows that its predecessor was killed, and tidies up.
//
// Records live as long as what they describe, a pod's network: until DEL, GC,
// or the reboot. On tmpfs they go by themselves; elsewhere the directory
// carries the boot id and is emptied at the first use after a boot. That is
// why nothing here is fsynced.
//
// A record that cannot be read is set aside under another name, and a record
// without an owner takes its place: its address stays taken until a person has
// looked at it.
//
// The package imports ipam, statefile and cnierr of the project.
package local
