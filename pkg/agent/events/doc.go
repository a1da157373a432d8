// Package events reports an agent's notices as core/v1 Events of the node,
// which "kubectl describe node" shows.
//
// [Recorder.Notify] never blocks, because notices wait in a queue. If the API server does not
// answer for a long time, some notices are lost. The log has all notices.
//
// To send the notices of an agent:
//
//	recorder := events.New(client, node, log)
//	go recorder.Run(ctx)
//	a := agent.New(agent.Options{Notify: recorder.Notify, Log: log})
package events
