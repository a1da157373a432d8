package usage

import (
	"cmp"
	"math/big"
	"slices"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/report"
)

// maxPools bounds the number of address pools that have metrics. There may be many pools:
// with node slices each node has a pool for each range.
const maxPools = 1000

// Metrics are the metrics of the cluster's address pools. Only the process that reconciles
// the pools knows them, because it reads all pools anyway. The zero value knows no pools
// and sends nothing.
type Metrics struct {
	mu    sync.Mutex
	pools []poolUse
	read  time.Time // when the pools were read; zero if another process reconciles
}

// poolUse is how full an address pool is.
type poolUse struct {
	Pool      string // name of the IPPool
	Used      float64
	Addresses float64 // number of addresses that the pool can have at the most
	// Claimed is the number of blocks that nodes hold, and Blocks the number of all blocks.
	// Blocks is 0 for a pool that is not divided.
	Claimed, Blocks float64
}

// full returns the part of the pool that is used, from 0 to 1.
func (p *poolUse) full() float64 {
	if p.Blocks > 0 {
		return max(p.Used/p.Addresses, p.Claimed/p.Blocks)
	}
	return p.Used / p.Addresses
}

// Component returns the metrics as a component of the agent.
func (m *Metrics) Component() component.Component {
	return component.Component{Name: "pools", Collect: m.collect}
}

// Surveyed replaces the metrics by those of s, which the reconciler has read. s is nil if
// the reconciler is no longer the leader: then no metrics are sent.
func (m *Metrics) Surveyed(s *api.Survey) {
	var pools []poolUse
	var read time.Time
	if s != nil {
		read = time.Now()
		for _, v := range report.Usage(s) {
			use := poolUse{Pool: v.Name, Used: float64(v.Used), Addresses: v.Capacity()}
			if d := v.Divided; d != nil {
				use.Claimed = float64(d.Claimed)
				use.Blocks, _ = new(big.Float).SetInt(d.InRange).Float64()
			}
			pools = append(pools, use)
		}
		slices.SortFunc(pools, func(a, b poolUse) int {
			return cmp.Or(cmp.Compare(b.full(), a.full()), cmp.Compare(a.Pool, b.Pool))
		})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pools, m.read = pools, read
}

// collect sends the metrics of the fullest pools.
func (m *Metrics) collect(out component.Metrics) {
	m.mu.Lock()
	pools, read := m.pools, m.read // Surveyed replaces the slice and never changes it
	m.mu.Unlock()
	if read.IsZero() {
		return
	}
	out.Gauge("rail_cni_pools", "Address pools of the cluster.", float64(len(pools)))
	out.Gauge("rail_cni_pools_read_timestamp_seconds", "When the address pools of the cluster were read.", float64(read.UnixMilli())/1000)
	for _, p := range pools[:min(len(pools), maxPools)] {
		out.Gauge("rail_cni_pool_addresses", "Addresses that the pool can have at the most.", p.Addresses, "pool", p.Pool)
		out.Gauge("rail_cni_pool_addresses_used", "Addresses of the pool that are in use.", p.Used, "pool", p.Pool)
		if p.Blocks > 0 {
			out.Gauge("rail_cni_pool_blocks", "Blocks that the pool is divided into.", p.Blocks, "pool", p.Pool)
			out.Gauge("rail_cni_pool_blocks_claimed", "Blocks of the pool that nodes hold.", p.Claimed, "pool", p.Pool)
		}
	}
}
