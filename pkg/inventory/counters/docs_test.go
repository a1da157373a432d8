package counters

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/docs"
	"github.com/rail-cni/rail-cni/pkg/component/componenttest"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

// The other metrics are compared by package docs.
func TestMetricsPageHasTheLabelsOfRDMACounters(t *testing.T) {
	const page = "docs/reference/metrics.md"
	var metrics componenttest.Metrics
	c := &scrape{node: "node1", out: &metrics, roots: map[ibaddr.GUID]string{1: "ens12np0"}}
	c.add("np_cnp_sent", 1, port{
		device: rdma.Device{Name: "mlx5_0", NodeGUID: 2, SysImageGUID: 1}, name: "mlx5_0", netdev: "net1",
		pod: ledger.Pod{Namespace: "default", Name: "trainer-0"},
	}, "priority", "3")
	const name = "rdma_np_cnp_sent_total"
	section := docs.Section(t, page, "RDMA counters")
	if len(metrics) != 1 || !strings.HasPrefix(metrics[0], name+"{") || !strings.Contains(section, name) {
		t.Fatalf("%s: the code has no %s, or the page: %v", page, name, metrics)
	}
	var code, documented []string
	for _, m := range regexp.MustCompile(`([a-z_]+)="`).FindAllStringSubmatch(metrics[0], -1) {
		code = append(code, m[1])
	}
	for _, row := range docs.Rows(section) {
		documented = append(documented, docs.Code(row[0])...)
	}
	if !slices.Equal(code, documented) {
		t.Errorf("%s has the labels %v, the code %v", page, documented, code)
	}
}

// In its pod anybody with CAP_NET_ADMIN may rename a device, again and again: each name would be
// another series.
func TestMetricsNameADeviceAsTheHostDoes(t *testing.T) {
	d := rdma.Device{Name: "of-the-pods-choice", NodeGUID: 2, SysImageGUID: 1, ParentDev: "0000:3b:00.0"}
	r := &ledger.Record{RDMA: &ledger.RDMA{Devices: []ledger.RDMADevice{{Name: "mlx5_0", NodeGUID: 2, ParentDev: "0000:3b:00.0"}}}}
	var metrics componenttest.Metrics
	c := &scrape{out: &metrics, roots: map[ibaddr.GUID]string{}}
	told := c.describe(d, rdma.Port{Number: 1}, r)
	c.add("np_cnp_sent", 1, told)
	c.addState(told)
	if len(metrics) != 2 {
		t.Fatal(metrics)
	}
	for _, line := range metrics {
		if strings.Contains(line, d.Name) || !strings.Contains(line, `"mlx5_0"`) {
			t.Error(line)
		}
	}
}
