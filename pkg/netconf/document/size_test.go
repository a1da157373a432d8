package document

import (
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

func TestWhatBelongsToOneCallIsNotKept(t *testing.T) {
	got, err := Kept([]byte(`{"name":"n","PrevResult":{"a":1},"prevResult":{},"cni.dev/valid-attachments":[],"cni.dev/attachments":[],"runtimeConfig":{"ips":["10.0.0.2"]},"number":12345678901234567890}`))
	want := `{"name":"n","number":12345678901234567890,"runtimeConfig":{"ips":["10.0.0.2"]}}`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	if _, err := Kept([]byte(`[`)); err == nil {
		t.Error("no error for what is no configuration")
	}
}

func TestHowMuchOfAConfigurationIsKept(t *testing.T) {
	pad := func(n int) string { return `"` + strings.Repeat("x", n) + `"` }
	for name, c := range map[string]struct {
		config string
		most   int    // bytes that are kept, 0 if it is refused
		want   string // part of the kept configuration, or of the error
		parses bool   // CheckSize accepts it
	}{
		"what another IPAM plugin reads":      {`{"ipam":{"type":"calico-ipam"},"kubernetes":{"kubeconfig":"/k"},"note":` + pad(3000) + `}`, 4 << 10, `"kubeconfig":"/k"`, true},
		"60 kB that no plugin reads":          {`{"cniVersion":"1.0.0","name":"n","type":"t","ipam":{"type":"i"},"Args":{"cni":{"ips":[]}},"RuntimeConfig":{},"stateDir":"/s","note":` + pad(60000) + `}`, 200, `"Args":{"cni":{"ips":[]}}`, true},
		"1 MB that no plugin reads":           {`{"ipam":{"type":"i"},"note":` + pad(1000000) + `}`, 200, `"ipam":{"type":"i"}`, false},
		"a large prevResult is not the NAD's": {`{"ipam":{"type":"i"},"prevResult":` + pad(1000000) + `}`, 200, `"ipam":{"type":"i"}`, true},
		"ipam of 17 kB":                       {`{"ipam":{"type":"i","note":` + pad(17000) + `}}`, 0, "have 17", true},
		"a name of 17 kB":                     {`{"name":` + pad(17000) + `}`, 0, "cniVersion, name, type, ipam, args, runtimeConfig, stateDir", true},
		"ipam of 16 kB":                       {`{"ipam":{"type":"i","note":` + pad(16000) + `}}`, 16 << 10, "xxx", true},
	} {
		t.Run(name, func(t *testing.T) {
			kept, err := Kept([]byte(c.config))
			switch {
			case c.most == 0:
				if failure.KindOf(err) != failure.InvalidConfig || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
			case err != nil || len(kept) > c.most || !strings.Contains(string(kept), c.want):
				t.Errorf("%d bytes are kept, at most %d wanted: %.300s, %v", len(kept), c.most, kept, err)
			}
			if err := CheckSize([]byte(c.config)); (err == nil) != c.parses || err != nil && failure.KindOf(err) != failure.InvalidConfig {
				t.Error(err)
			}
		})
	}
}
