package subject

import (
	"fmt"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// EnoughMemlock is the smallest limit of locked memory, in bytes, that is enough for RDMA programs.
// With a smaller limit they are known to fail: NCCL with eight rails registers several gigabytes.
const EnoughMemlock int64 = 8 << 30

// LocksEnough reports whether programs with this limit can register enough memory.
func LocksEnough(m *fact.Memlock) bool { return m.Soft == fact.Unlimited || m.Soft >= EnoughMemlock }

// SizeText returns a limit as a text for people, for example "64 KiB".
func SizeText(limit int64) string {
	switch {
	case limit == fact.Unlimited:
		return "unlimited"
	case limit >= 1<<30 && limit%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", limit>>30)
	case limit >= 1<<20 && limit%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", limit>>20)
	case limit >= 1<<10 && limit%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", limit>>10)
	}
	return fmt.Sprintf("%d bytes", limit)
}
