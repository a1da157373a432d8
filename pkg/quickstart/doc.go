// Package quickstart prepares the Go runtime for a program that ends within milliseconds.
// To use it, import it in the main package of such a program, and nowhere else:
//
//	import _ "github.com/rail-cni/rail-cni/pkg/quickstart"
//
// The process gets only one processor of the runtime. In a plugin each step follows the one
// before, and more processors would only make idle threads look for work. The stack of the
// main goroutine grows once at the start, instead of five times later with a copy each
// time.
//
// The package imports nothing but the runtime, so it is initialized before nearly all other
// packages. (The Go specification, "Package initialization": of the packages whose imports
// are initialized, the first by import path is next.) If the change to one processor came
// later, it would cost half a millisecond, because the runtime takes back the memory that
// it has prepared for the other processors.
package quickstart
