// Package quickstart prepares the Go runtime for a program that ends within milliseconds, if it is imported. The main of such
// a program imports it, and nobody else:
//
//	import _ "github.com/rail-cni/rail-cni/pkg/quickstart"
//
// The process gets one processor of the runtime: in a plugin one step follows the other, and more processors only make idle
// threads look for work. And the stack of the main goroutine grows once, not five times with a copy each time.
//
// The package imports nothing but the runtime. So it is initialized before nearly all others (Go specification, "Package
// initialization": the first by import path whose imports are initialized). Later the change to one processor costs half
// a millisecond, because the runtime takes back the memory that was prepared for the others.
package quickstart
