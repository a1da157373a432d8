// Package usage sends how full the address pools of a cluster are to Prometheus, as a component of
// the process that reconciles them: it reads all of them anyway.
//
//	pools := new(usage.Metrics)
//	r := reconcile.New(reconcile.Options{Client: client, Surveyed: pools.Surveyed, Log: log})
//	agent.Add(pools.Component())
package usage
