// Package local is an address store without a server: files on the node. It is for one
// machine; two nodes with the same configuration would assign the same addresses.
//
// Below "<state directory>/ipam" each address space has a directory ("space", or
// "space-<network_name>"). It has one directory for each pool:
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
// Only the record counts: an address is taken while its record exists. The links lead from
// an owner to its record, and count only if the record agrees. The map makes the choice of
// an address cheap, because it is read before the records. It can be wrong in only one way:
// a taken address may look free. Then one more record is read, and the map is corrected.
// The map is rebuilt before a pool is reported as exhausted. A reservation keeps an address
// from the other pools of its address space.
//
// A process may be killed between any two system calls. What it leaves behind is harmless
// (a link without a record), or is found and finished by the next ADD or DEL of the same
// owner. The order of the writes makes sure of that:
//
//	ADD: links, record, reservation, bit      DEL: bit, reservation, record, links
//
// While a process changes a pool, it holds the pool's lock and has the pool marked as busy.
// If the next process finds the mark, it knows that its predecessor was killed, and tidies
// up.
//
// With [ipam.Claim.SameHost], no file has the host part that was chosen for a container.
// The host part is that of the container's records in the pools of the rails. From the
// choice until the first of these records exists, the process holds the address space's
// host.lock.
//
// Records live as long as a pod's network: until DEL, GC, or the reboot. On tmpfs they
// disappear by themselves. On another file system the directory has a file with the boot
// ID, and is emptied at the first use after a boot. So no file needs to be synced.
//
// An unreadable record is renamed, and a record without an owner takes its place. The
// address stays taken until a person has examined the unreadable record.
//
// To assign an address of a claim to an owner:
//
//	prefixes, err := local.New(stateDir).Allocate(ctx, owner, []ipam.Claim{claim})
package local
