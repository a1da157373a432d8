// Command exec runs a test binary in the rig, for "go test -exec", or any other
// static binary:
//
//	go build -o bin/tools/rig ./integration/rig/exec
//	CGO_ENABLED=0 go test -exec "$PWD/bin/tools/rig" ./pkg/part/plans -run TestNIC -v
//
// "rig build" only makes the machine's image.
//
// Environment:
//
//	RAIL_CNI_BIN, RAIL_CNI_PEERS  directories of the plugins that the guest gets
//	                              (bin and bin/peers of the checkout)
//	RIG                           the machine: 6.12, 6.18, 6.1, 5.10 or arm64 (6.12)
//	RIG_ACCEL                     what runs the machine's CPUs: tcg (software), kvm, or
//	                              auto, the default: KVM where it boots the machine. See README.md
//	RIG_PACKAGES                  directory of downloaded Debian packages, for all
//	                              checkouts (rail-cni/debian in the user's cache directory)
//	RIG_MODULE                    parameters of the NICs' kernel module, as
//	                              "movable=0 move_delay_ms=50"
//	RIG_DISK                      a file with an ext4 file system, the machine's
//	                              disk (kmod.Disk)
//	RIG_FILES                     a directory of what the machine has below /
//	RIG_REACH                     an address of this host's loopback that the
//	                              machine reaches (wire.Reached)
//	RIG_IGB                       yes: the NIC with virtual functions is QEMU's igb, with
//	                              the kernel's drivers (wire.Functions) and an IOMMU
//	RIG_MEMORY                    the machine's memory in MB (1024)
//	RIG_LIMIT                     how long the machine may live, as "5m" (a test
//	                              binary's -test.timeout and half a minute)
//	RIG_MACHINES                  how many machines of this checkout may run at a
//	                              time (1); each takes a CPU and 1.5 GB of memory
//	RIG_VERBOSE                   if set, say when the test begins
//
// These, GO* variables and RAIL_CNI_TESTS are passed on to the test.
package main
