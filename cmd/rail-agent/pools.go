package main

import (
	"math/big"
	"slices"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/agent"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/report"
)

// poolUse keeps how full the cluster's pools were when the reconciler last read them.
type poolUse struct {
	mu   sync.Mutex
	last agent.PoolMetrics
}

// surveyed takes what the reconciler has read, nil if it does not lead any more.
func (p *poolUse) surveyed(s *api.Survey) {
	var m agent.PoolMetrics
	if s != nil {
		m.Read = time.Now()
		for _, v := range report.Usage(s) {
			use := agent.PoolUse{Pool: v.Name, Used: float64(v.Used), Addresses: v.Capacity()}
			if d := v.Divided; d != nil {
				use.Claimed = float64(d.Claimed)
				use.Blocks, _ = new(big.Float).SetInt(d.InRange).Float64()
			}
			m.Pools = append(m.Pools, use)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = m
}

// metrics returns the values of the metrics.
func (p *poolUse) metrics() agent.PoolMetrics {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.last
	m.Pools = slices.Clone(m.Pools)
	return m
}
