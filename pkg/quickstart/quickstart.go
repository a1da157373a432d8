package quickstart

import "runtime"

func init() {
	runtime.GOMAXPROCS(1)
	growStack(false)
}

// growStack has the runtime give the main goroutine, at once, a stack that suffices for the whole program: newstack
// makes room for the frame. The frame itself is not used.
//
//go:noinline
func growStack(use bool) {
	if use {
		var frame [40 << 10]byte
		runtime.KeepAlive(&frame)
	}
}
