package agent

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"
)

// mostPools bounds the address pools that have metrics. With node slices each node has a pool
// for each range.
const mostPools = 1000

// PoolMetrics are the values of the metrics of the cluster's address pools. Only the process
// that reconciles the pools knows them, because it reads all of them anyway.
type PoolMetrics struct {
	Pools []PoolUse
	Read  time.Time // when the pools were read; zero if another process reconciles
}

// PoolUse is how full an address pool is.
type PoolUse struct {
	Pool      string // name of the IPPool
	Used      float64
	Addresses float64 // that the pool can have at the most
	// Claimed of the Blocks are held by nodes. Blocks is 0 of a pool that is not divided.
	Claimed, Blocks float64
}

// full returns the part of the pool that is used, from 0 to 1.
func (p *PoolUse) full() float64 {
	if p.Blocks > 0 {
		return max(p.Used/p.Addresses, p.Claimed/p.Blocks)
	}
	return p.Used / p.Addresses
}

// collectPools adds the metrics of the fullest address pools.
func (a *agent) collectPools(e *exposition) {
	if a.Pools == nil {
		return
	}
	m := a.Pools()
	if m.Read.IsZero() {
		return
	}
	slices.SortFunc(m.Pools, func(a, b PoolUse) int {
		return cmp.Or(cmp.Compare(b.full(), a.full()), cmp.Compare(a.Pool, b.Pool))
	})
	e.add("rail_cni_pools", gauge, "Address pools of the cluster.", float64(len(m.Pools)), nil)
	e.add("rail_cni_pools_read_timestamp_seconds", gauge, "When the address pools of the cluster were read.", float64(m.Read.UnixMilli())/1000, nil)
	for _, p := range m.Pools[:min(len(m.Pools), mostPools)] {
		e.add("rail_cni_pool_addresses", gauge, "Addresses that the pool can have at the most.", p.Addresses, labels{"pool", p.Pool})
		e.add("rail_cni_pool_addresses_used", gauge, "Addresses of the pool that are in use.", p.Used, labels{"pool", p.Pool})
		if p.Blocks > 0 {
			e.add("rail_cni_pool_blocks", gauge, "Blocks that the pool is divided into.", p.Blocks, labels{"pool", p.Pool})
			e.add("rail_cni_pool_blocks_claimed", gauge, "Blocks of the pool that nodes hold.", p.Claimed, labels{"pool", p.Pool})
		}
	}
}

// ServePools serves the metrics of address pools and of the process at o.Metrics until ctx ends, for
// a process that keeps no node. Of o it uses Metrics, MetricsTLS, MetricsGuard, Pools and Log.
// While another process has the port, it tries again.
func ServePools(ctx context.Context, o Options) error {
	if err := checkMetrics(o.Metrics); err != nil {
		return err
	}
	a := &agent{Options: o, scrapes: newTurns()}
	metrics := a.scraped(func(e *exposition) {
		a.collectPools(e)
		process(e)
	})
	if o.MetricsGuard != nil {
		metrics = o.MetricsGuard(metrics)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	a.serveMetrics(ctx, mux)
	return nil
}
