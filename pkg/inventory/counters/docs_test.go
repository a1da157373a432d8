package counters

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/rail-cni/rail-cni/docs"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// The other metrics are compared by package docs.
func TestMetricsPageHasTheLabelsOfRDMACounters(t *testing.T) {
	const page = "docs/reference/metrics.md"
	ch := make(chan prometheus.Metric, 1)
	c := &scrape{node: "node1", ch: ch, roots: map[rdma.GUID]string{1: "ens12np0"}}
	c.tell("np_cnp_sent", 1, port{
		device: rdma.Device{Name: "mlx5_0", NodeGUID: 2, SysImageGUID: 1}, name: "mlx5_0", netdev: "net1",
		pod: ledger.Pod{Namespace: "default", Name: "trainer-0"},
	}, "priority", "3")
	const name = "rdma_np_cnp_sent_total"
	section := docs.Section(t, page, "RDMA counters")
	m := <-ch
	if !strings.Contains(m.Desc().String(), name) || !strings.Contains(section, name) {
		t.Fatalf("%s: the code has no %s, or the page: %v", page, name, m.Desc())
	}
	var text dto.Metric
	if err := m.Write(&text); err != nil {
		t.Fatal(err)
	}
	var code, documented []string
	for _, label := range text.GetLabel() {
		code = append(code, label.GetName())
	}
	for _, row := range docs.Rows(section) {
		documented = append(documented, docs.Code(row[0])...)
	}
	slices.Sort(documented)
	if !slices.Equal(code, documented) {
		t.Errorf("%s has the labels %v, the code %v", page, documented, code)
	}
}

// In its pod anybody with CAP_NET_ADMIN may rename a device, again and again: each name would be
// another series.
func TestMetricsNameADeviceAsTheHostDoes(t *testing.T) {
	d := rdma.Device{Name: "of-the-pods-choice", NodeGUID: 2, SysImageGUID: 1, ParentDev: "0000:3b:00.0"}
	r := &ledger.Record{RDMA: &ledger.RDMA{Devices: []ledger.RDMADevice{{Name: "mlx5_0", NodeGUID: 2, ParentDev: "0000:3b:00.0"}}}}
	ch := make(chan prometheus.Metric, 3)
	c := &scrape{ch: ch, roots: map[rdma.GUID]string{}}
	told := c.describe(d, rdma.Port{Number: 1}, r)
	c.tell("np_cnp_sent", 1, told)
	c.tellState(told)
	if len(ch) != 2 {
		t.Fatalf("%d metrics", len(ch))
	}
	for range 2 {
		var m dto.Metric
		if err := (<-ch).Write(&m); err != nil {
			t.Fatal(err)
		}
		if text := m.String(); strings.Contains(text, d.Name) || !strings.Contains(text, `"mlx5_0"`) {
			t.Error(text)
		}
	}
}
