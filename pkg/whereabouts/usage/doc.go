// Package usage sends metrics to Prometheus that show how full the address pools of a
// cluster are. It is a component of the process that reconciles the pools, because that
// process reads all of them anyway.
//
//	pools := new(usage.Metrics)
//	r := reconcile.New(reconcile.Options{Client: client, Surveyed: pools.Surveyed, Log: log})
//	agent.Add(pools.Component())
package usage
