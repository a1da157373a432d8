// Package local is an address store without a server: files on the node. It is
// for one machine; two nodes with the same configuration would assign the same
// addresses.
//
// Below "<state directory>/ipam" each address space has a directory ("space",
// or "space-<network_name>"), which has one for each pool:
//
//	space/
//	  10.0.0.0_24/                     the pool of 10.0.0.0/24
//	    pool.json                      what the directory is
//	    10.0.0.2.json                  who holds 10.0.0.2: the record
//	    by-pod/default%2Fweb-0@net1    -> ../10.0.0.2.json
//	    by-attachment/3f2a…@net1       -> ../10.0.0.2.json
//	    map-10.0.0.0                   which addresses are probably taken, as bits
//	    last                           the address handed out last, with "allocation": "rotate"
//	    lock, busy
//	  reserved/10.0.0.2                -> ../10.0.0.0_24/10.0.0.2.json
//
// Only the record counts: an address is taken while its record exists. The
// links lead from an owner to its record and count only if the record agrees.
// The map makes the choice of an address cheap: it is read before the records.
// It may be wrong only by calling a taken address free, which costs one read of
// a record and is then corrected. It is rebuilt before a pool is reported
// exhausted. A reservation keeps an address from the other pools of its address
// space.
//
// A process may be killed between any two system calls. The order of the writes
// makes sure that its leftovers are either harmless (a link without a record)
// or are found and finished by the next ADD or DEL of the same owner:
//
//	ADD: links, record, reservation, bit      DEL: bit, reservation, record, links
//
// A process that changes a pool holds its lock, and marks it busy meanwhile. A
// process that finds the mark knows that its predecessor was killed, and tidies
// up.
//
// With [ipam.Claim.SameHost] the host part of a container is that of its records in the pools
// of the other rails. The choice has no file of its own: from the choice until the first record
// exists, the process holds the address space's host.lock.
//
// Records live as long as a pod's network: until DEL, GC, or the reboot. On
// tmpfs they disappear by themselves; elsewhere the directory has the boot ID
// and is emptied at the first use after a boot. So no file is synced.
//
// An unreadable record is renamed, and a record without an owner replaces it:
// its address stays taken until a person has examined it.
//
// To assign an address of a claim to an owner:
//
//	prefixes, err := local.New(stateDir).Allocate(ctx, owner, []ipam.Claim{claim})
package local
