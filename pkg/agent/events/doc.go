// Package events reports an agent's notices as core/v1 Events of the node,
// which "kubectl describe node" shows.
//
// [Recorder.Notify] never blocks: notices wait in a queue. If the API server does
// not answer for long, some are lost. The log has all of them.
//
// To send the notices of an agent:
//
//	recorder := events.New(client, node, log)
//	go recorder.Run(ctx)
//	a := agent.New(agent.Options{Notify: recorder.Notify, Log: log})
package events
