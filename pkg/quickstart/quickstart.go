package quickstart

import "runtime"

func init() {
	runtime.GOMAXPROCS(1)
	growStack(false)
}

// growStack makes the runtime give the main goroutine a stack that suffices for the whole
// program. A call of growStack needs room for its large frame, so newstack in the runtime
// makes room at once. The frame itself is not used.
//
//go:noinline
func growStack(use bool) {
	if use {
		var frame [40 << 10]byte
		runtime.KeepAlive(&frame)
	}
}
