package verify

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestOutputOfPerftestIsRead has outputs of perftest 6.06 over Soft-RoCE in an emulated machine.
func TestOutputOfPerftestIsRead(t *testing.T) {
	for program, want := range map[string]float64{rdmaLatency: 4204.28, rdmaBandwidth: 0.032292} {
		text, err := os.ReadFile("testdata/" + program + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		output := string(text)
		if have, err := ParsePerftest(program, output); err != nil || have != want {
			t.Errorf("%s: %v, %v, not %v", program, have, err, want)
		}
		head := strings.Index(output, "#bytes")
		for what, bad := range map[string]string{
			"nothing":                      "",
			"two tables":                   output + output,
			"a table without a line":       output[:head+strings.Index(output[head:], "\n")+1],
			"the table of another program": strings.NewReplacer("t_typical[usec]", "t_other[usec]", "BW average[Gb/sec]", "BW average[MB/sec]").Replace(output),
		} {
			if have, err := ParsePerftest(program, bad); err == nil {
				t.Errorf("%s, %s: %v", program, what, have)
			}
		}
	}
}

// TestOutputOfPerftestWithANumberOfMessagesIsRead: with -n (a number of messages), ib_write_bw
// prints a peak bandwidth. With -D (a duration), it does not.
func TestOutputOfPerftestWithANumberOfMessagesIsRead(t *testing.T) {
	text, err := os.ReadFile("testdata/" + rdmaBandwidth + "-n.txt")
	if err != nil {
		t.Fatal(err)
	}
	if have, err := ParsePerftest(rdmaBandwidth, string(text)); err != nil || have != 0.021129 {
		t.Errorf("%v, %v", have, err)
	}
}

const bandwidthHead = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"

func TestHostileOutputOfPerftestIsRefused(t *testing.T) {
	if v, err := ParsePerftest(rdmaBandwidth, bandwidthHead+" 65536      1000             0.00               391.20             0.746\n"); err != nil || v != 391.2 {
		t.Errorf("%v, %v", v, err)
	}
	for _, line := range []string{
		"65536 1000 0.00", "65536 1000 0.00 fast 0.7", "65536 1000 0.00 NaN 0.7", "65536 1000 0.00 -3 0.7", "65536 1000 0.00 0 0.7",
		"65536 1000 0.00 1e300 0.7", "65536 1000 0.00 Inf 0.7", "", "\x1b[2J", strings.Repeat("9", 1<<16),
	} {
		if v, err := ParsePerftest(rdmaBandwidth, bandwidthHead+line); err == nil || len(err.Error()) > 2000 {
			t.Errorf("%.40q: %v", line, v)
		}
	}
	if _, err := ParsePerftest("sh", bandwidthHead); err == nil {
		t.Error("another program is known")
	}
}

func FuzzParsePerftest(f *testing.F) {
	f.Add(rdmaBandwidth, bandwidthHead+"65536 1000 0.00 391.20 0.746")
	f.Add(rdmaPing, " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n 2 100 1.0 2.0 1.5\n")
	f.Fuzz(func(t *testing.T, program, output string) {
		if v, err := ParsePerftest(program, output); err == nil && (v <= 0 || v > maxValue) {
			t.Errorf("%v", v)
		}
	})
}

func TestEndThatIsSlowByRDMAIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		nodes  int
		defect defect
		want   []string
	}{
		"nothing":                  {3, defect{}, nil},
		"no device":                {3, defect{noVerbs: true}, []string{"rdma: n1/2"}},
		"no device, two nodes":     {2, defect{noVerbs: true}, []string{"rdma: n1/2"}},
		"half speed":               {3, defect{half: 0.5}, []string{"bandwidth: n1/2"}},
		"half speed, two nodes":    {2, defect{half: 0.5}, []string{"bandwidth: n0/2 or n1/2"}},
		"slow messages":            {4, defect{slowRDMA: 20}, []string{"rdmaLatency: n1/2"}},
		"slow messages, two nodes": {2, defect{slowRDMA: 20}, []string{"rdmaLatency: n0/2 or n1/2"}},
	} {
		for seed := range uint64(2) {
			f := newFabric(c.nodes, 4, seed)
			f.defects[End{"n1", 2}] = c.defect
			r, err := f.run(Options{RDMA: RDMABandwidth})
			if err != nil {
				t.Fatal(err)
			}
			if have := told(r); !slices.Equal(have, c.want) {
				t.Errorf("%s: %q, not %q: %+v", name, have, c.want, r.Findings)
			}
		}
	}
	r, err := newFabric(2, 2, 1).run(Options{RDMA: RDMAPing})
	if err != nil || r.Status != Healthy {
		t.Fatalf("%v, %+v", err, r)
	}
	for _, p := range r.Paths {
		if p.RDMA == nil || p.RDMA.Ping == 0 || p.RDMA.Bandwidth != 0 {
			t.Errorf("%+v", p.RDMA)
		}
	}
}

// withoutPerftest is a prober whose image lacks the programs.
type withoutPerftest struct{ Prober }

func (w withoutPerftest) Do(ctx context.Context, r *Request) (*Answer, error) {
	if r.RDMA != nil {
		return nil, errors.New("ib_send_lat is not there")
	}
	return w.Prober.Do(ctx, r)
}

func TestProgramThatIsNotThereIsUnknown(t *testing.T) {
	f := newFabric(2, 2, 1)
	nodes := []Node{{Name: "n0", Prober: &simulated{f, 0}}, {Name: "n1", Prober: withoutPerftest{&simulated{f, 1}}}}
	r, err := Run(t.Context(), nodes, Options{RDMA: RDMAPing})
	if err != nil || r.Status != Unknown || len(r.Findings) > 0 || !slices.Equal(r.Unknown, []string{"n1: level 2: ib_send_lat is not there"}) {
		t.Errorf("%v, %+v", err, r)
	}
}
