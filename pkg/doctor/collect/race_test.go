//go:build race

package collect

// The race detector has a shadow of all memory, and threads of C have large stacks.
func init() { childMemory = 1 << 30 }
