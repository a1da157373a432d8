package pods

import (
	"testing"

	"github.com/rail-cni/rail-cni/integration/ruletest"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

func TestValuesOfNCCLIBHCA(t *testing.T) {
	devices := []fact.Port{{Device: "mlx5_1"}, {Device: "mlx5_10"}, {Device: "mlx5_2"}}
	for value, want := range map[string]string{
		"":                  "",
		"=mlx5_1,mlx5_2":    "",
		"=mlx5_1:1":         "",
		"mlx5_2":            "",
		"mlx5":              "", // all, on purpose
		"mlx5_1":            "mlx5_1 is also the beginning of mlx5_10",
		"mlx5_1:1,mlx5_2:1": "mlx5_1 is also the beginning of mlx5_10",
		"^mlx5_1":           "mlx5_1 is also the beginning of mlx5_10",
		"^=mlx5_1":          "",
		"^mlx5_7":           "",
		"=mlx5":             "the pod sees no device mlx5",
		"bnxt_re0":          "the pod sees no device bnxt_re0",
	} {
		if got := wrongHCA(value, devices); got != want {
			t.Errorf("%q: %q, not %q", value, got, want)
		}
	}
}

func TestPodsOfAnUnknownLedgerAreUnknown(t *testing.T) {
	f := &fact.Facts{Schema: fact.Schema, Host: &fact.Host{RDMAMode: fact.Known("shared", "test")}, Ledger: &fact.Ledger{}}
	ruletest.Away(&f.Ledger.Attachments)
	for _, id := range []string{"K8S-DEVINFO", "POD-CHARDEV", "POD-DOWN"} {
		if _, status := ruletest.Find(t, Rules(), f, id); status != rule.Unknown {
			t.Errorf("%s is %s", id, status)
		}
	}
}
