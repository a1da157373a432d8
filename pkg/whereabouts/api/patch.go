package api

import (
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// PoolPatch builds a JSON patch of an IPPool. Before each change the patch tests that the
// entry is unchanged, so the server refuses the whole patch if one of the entries has
// changed.
type PoolPatch struct {
	Ops   []kube.PatchOp
	Added map[string]Entry // by key

	// tested has the keys whose entries the patch tests and then removes or replaces. A
	// second test of the same key would always fail.
	tested map[string]bool
}

// Remove removes the entry e. A repeated removal of the same key is ignored.
func (p *PoolPatch) Remove(key string, e Entry) {
	if p.tested[key] {
		return
	}
	p.test(key, e)
	p.Ops = append(p.Ops, kube.PatchOp{Op: "remove", Path: keyPath(key)})
}

// Replace replaces the entry was with the entry is.
func (p *PoolPatch) Replace(key string, was, is Entry) {
	p.test(key, was)
	p.Ops = append(p.Ops, kube.PatchOp{Op: "replace", Path: keyPath(key), Value: is})
}

// Tests reports whether the patch removes or replaces the entry of key.
func (p *PoolPatch) Tests(key string) bool { return p.tested[key] }

func (p *PoolPatch) test(key string, e Entry) {
	if p.tested == nil {
		p.tested = map[string]bool{}
	}
	p.tested[key] = true
	p.Ops = append(p.Ops,
		kube.PatchOp{Op: "test", Path: keyPath(key) + "/id", Value: e.ContainerID},
		kube.PatchOp{Op: "test", Path: keyPath(key) + "/podref", Value: e.PodRef})
	if e.IfName != "" {
		p.Ops = append(p.Ops, kube.PatchOp{Op: "test", Path: keyPath(key) + "/ifname", Value: e.IfName})
	}
}

// opsToAdd is the number of operations of Add.
const opsToAdd = 2

// Add adds the entry e if the key has none.
func (p *PoolPatch) Add(key string, e Entry) {
	if p.Added == nil {
		p.Added = map[string]Entry{}
	}
	p.Ops = append(p.Ops,
		kube.PatchOp{Op: "test", Path: keyPath(key), Value: nil},
		kube.PatchOp{Op: "add", Path: keyPath(key), Value: e})
	p.Added[key] = e
}

// OnlyAdds reports whether the patch neither removes nor replaces an entry.
func (p *PoolPatch) OnlyAdds() bool { return len(p.Ops) == len(p.Added)*opsToAdd }

func keyPath(key string) string { return "/spec/allocations/" + kube.Escape(key) }
