package rdma

import (
	"encoding/hex"
	"maps"
	"slices"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// Answers of Linux 6.12 (amd64), recorded in the rig from the device with
// index 3.
var recorded = map[string]string{
	"device": "08000100030000000b0002006d6c78355f33000008000300010000000c00040000000000000000000f00050032382e33392e3130303200000c000600030000fefff6ceba0c000700030000fefff6ceba05000e00010000000500540000000000050065000000000009004300726f636500000000",
	"port":   "08000100030000000b0002006d6c78355f330000080003000100000005000c000400000005000d000500000008003200070000000f003300656e70307331396e70300000",
	"uverbs": "08004900120000000c004800c3e70000000000000c00470001000000000000000c0046007576657262733300",
	"umad":   "0c00480003e70000000000000c00470005000000000000000a004600756d616433000000",
	"stats":  "08000100030000000b0002006d6c78355f3300000800030001000000c0005080280051801600520072785f77726974655f72657175657374730000000c005300000000000000000024005180140052006f75745f6f665f73657175656e6365000c005300000000000000000020005180100052006e705f636e705f73656e74000c0053000000000000000000240051801300520072705f636e705f68616e646c656400000c00530000000000000000002c0051801900520072785f696372635f656e63617073756c61746564000000000c0053000000000000000000",
	"mode":   "05004200010000000500600000000000050067000100000005005d0001000000",
}

func message(t testing.TB, name string) []byte {
	t.Helper()
	b, err := hex.DecodeString(recorded[name])
	if err != nil || len(b) == 0 {
		t.Fatalf("message %q: %d bytes, %v", name, len(b), err)
	}
	return b
}

func attrsOf(t testing.TB, m []byte) nlattr.Attrs {
	t.Helper()
	a, err := nlattr.Parse(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestRecordedAnswersAreUnderstood(t *testing.T) {
	d, err := parseDevice(attrsOf(t, message(t, "device")))
	if want := (Device{
		Index: 3, Name: "mlx5_3", NodeGUID: 0xbacef6fffe000003, SysImageGUID: 0xbacef6fffe000003,
		NodeType: NodeCA, Protocol: "roce", FWVersion: "28.39.1002", Ports: 1, Moderation: "off",
	}); err != nil || d != want {
		t.Errorf("device: %+v, %v", d, err)
	}
	p, err := parsePort(attrsOf(t, message(t, "port")))
	if want := (Port{Number: 1, State: PortActive, Phys: PhysLinkUp, Netdev: 7, NetdevName: "enp0s19np0"}); err != nil || p != want {
		t.Errorf("port: %+v, %v", p, err)
	}
	u, err := parseCharDev(attrsOf(t, message(t, "uverbs")))
	if want := (CharDev{Name: "uverbs3", Major: 231, Minor: 195, ABI: 1}); err != nil || u != want || u.number() != 3 {
		t.Errorf("uverbs: %+v, %v", u, err)
	}
	m, err := parseCharDev(attrsOf(t, message(t, "umad")))
	if want := (CharDev{Name: "umad3", Major: 231, Minor: 3, ABI: 5}); err != nil || m != want || m.Path() != "/dev/infiniband/umad3" {
		t.Errorf("umad: %+v, %v", m, err)
	}
	s, err := parseCounters(attrsOf(t, message(t, "stats")))
	names := []string{"np_cnp_sent", "out_of_sequence", "rp_cnp_handled", "rx_icrc_encapsulated", "rx_write_requests"}
	if err != nil || !slices.Equal(slices.Sorted(maps.Keys(s)), names) {
		t.Errorf("counters: %v, %v", s, err)
	}
	if mode, err := parseMode(attrsOf(t, message(t, "mode"))); err != nil || mode != Shared {
		t.Errorf("mode: %q, %v", mode, err)
	}
}

func TestTheModeIsOneOfTwo(t *testing.T) {
	for text, want := range map[string]Mode{"0500420000000000": Exclusive, "0500420001000000": Shared, "0500420002000000": "", "04004200": "", "": ""} {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseMode(attrsOf(t, b))
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
}

// Every message that the kernel could truncate, at every length.
func TestShortMessagesAreErrorsOrHoles(t *testing.T) {
	for name := range recorded {
		whole := message(t, name)
		for n := range whole {
			parseAll(whole[:n])
		}
	}
	for _, text := range []string{"00000100", "03000100", "ff7f0100ffffffff"} {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		if a, err := nlattr.Parse(b); err == nil {
			t.Errorf("%s was taken for %v", text, a)
		}
	}
	for _, m := range []string{"port", "mode"} {
		if d, err := parseCharDev(attrsOf(t, message(t, m))); err == nil {
			t.Errorf("the %s was taken for the char device %+v", m, d)
		}
		if d, err := parseDevice(attrsOf(t, message(t, "uverbs"))); err == nil {
			t.Errorf("the char device was taken for the device %+v", d)
		}
		if p, err := parsePort(attrsOf(t, message(t, "mode"))); err == nil {
			t.Errorf("the mode was taken for the port %+v", p)
		}
	}
}

func parseAll(m []byte) {
	a, err := nlattr.Parse(m)
	if err != nil {
		return
	}
	if d, err := parseDevice(a); err == nil {
		_ = d.NodeGUID.String() + d.NodeType.String()
	}
	if p, err := parsePort(a); err == nil {
		_ = p.State.String() + p.Phys.String()
	}
	if d, err := parseCharDev(a); err == nil {
		_ = d.number()
	}
	_, _ = parseCounters(a)
	_, _ = parseMode(a)
}

func FuzzParsersTakeAnything(f *testing.F) {
	for name := range recorded {
		f.Add(message(f, name))
	}
	f.Fuzz(func(_ *testing.T, m []byte) { parseAll(m) })
}
