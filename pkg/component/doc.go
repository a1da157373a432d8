// Package component has the things that every component of rail-agent needs to run concurrently with other components:
// a [Loop] with a [Trigger], a [Backoff], a [Reporter] that contains panics and reports a problem only once, and an
// interface for metrics. The package does not know any component itself.
//
// To add a component, write a package below pkg/ that returns a [Component], and add it to the list
// in cmd/rail-agent/run.go.
//
//	func (k *Keeper) Component() component.Component {
//		loop := component.Loop{Reporter: k.Reporter, Trigger: k.changed, Settle: time.Second, Do: k.sync}
//		return component.Component{Name: "blocks", Run: loop.Run, Collect: k.collect}
//	}
//
// The agent itself (package agent) runs a list of components and serves their health, metrics and
// status.
package component
