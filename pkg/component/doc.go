// Package component has what each part of rail-agent needs to run beside the others: a [Loop]
// with a [Trigger], a [Backoff], a [Reporter] that contains panics and reports a problem once,
// and an interface for metrics. It knows none of the parts.
//
// A part is a [Component]: a package below pkg/ that returns one, and one line in
// cmd/rail-agent/run.go.
//
//	func (k *Keeper) Component() component.Component {
//		loop := component.Loop{Reporter: k.Reporter, Trigger: k.changed, Settle: time.Second, Do: k.sync}
//		return component.Component{Name: "blocks", Run: loop.Run, Collect: k.collect}
//	}
//
// The agent itself (package agent) runs a list of components, and serves their health, metrics
// and status.
package component
