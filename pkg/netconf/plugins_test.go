package netconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// users are configurations of users, as they arrive on stdin: unchanged from a NAD, with the keys
// that Multus injects, and from the network operator.
var users = []string{
	`{"cniVersion":"0.3.1","name":"roce-net1","type":"host-device","device":"ens12np0","ipam":{"type":"whereabouts","range":"172.31.1.0/24","gateway":"172.31.1.1"}}`,
	`{"cniVersion":"0.3.1","name":"rdma-net-ipam","type":"macvlan","master":"ens2f0","mode":"bridge","mtu":9000,"ipam":{"type":"whereabouts","range":"192.168.111.0/24"}}`,
	`{"cniVersion":"0.3.1","name":"hostdev-net","type":"host-device","deviceID":"0000:3b:00.0","pciBusID":"0000:3b:00.0","ipam":{"type":"whereabouts","range":"192.168.3.225/28","exclude":["192.168.3.229/30"]}}`,
	`{"cniVersion":"0.3.1","name":"hostdev-net","type":"host-device","pciBusID":"0000:3b:00.0","deviceID":"0000:3b:00.0","ipam":{}}`,
	`{"cniVersion":"1.1.0","name":"n","type":"macvlan","capabilities":{"mac":true},"runtimeConfig":{"mac":"02:00:00:00:00:01","deviceID":"0000:3b:00.0"},"args":{"cni":{}}}`,
}

const everyHostDevice = `{
	"cniVersion": "1.0.0", "name": "n", "type": "host-device", "stateDir": "/var/lib/rail-cni/",
	"device": "a", "hwaddr": "b", "kernelpath": "c", "pciBusID": "d", "deviceID": "e", "DPDKMode": true,
	"useInterfaceNetwork": true, "mtu": 9000, "allow": ["uplink"],
	"ipam": {"type": "whereabouts", "range": "10.0.0.0/8"}, "dns": {"nameservers": ["10.0.0.1"]},
	"prevResult": {"cniVersion": "1.0.0"},
	"runtimeConfig": {"deviceID": "f", "CNIDeviceInfoFile": "/run/x", "mac": "02:00:00:00:00:01", "ips": ["10.0.0.2/8"], "infinibandGUID": "for ib-sriov"},
	"capabilities": {"mac": true}, "unknown": {"keys": ["are", "tolerated"]}
}`

func TestHostDeviceKeys(t *testing.T) {
	want := HostDevice{
		Common: Common{
			CNIVersion: "1.0.0", Name: "n", Type: "host-device", IPAM: IPAM{Type: "whereabouts"},
			DNS: types.DNS{Nameservers: []string{"10.0.0.1"}}, StateDir: "/var/lib/rail-cni", PrevResult: json.RawMessage(`{"cniVersion": "1.0.0"}`),
			RuntimeConfig: RuntimeConfig{DeviceID: "f", CNIDeviceInfoFile: "/run/x", MAC: "02:00:00:00:00:01", IPs: []string{"10.0.0.2/8"}, InfinibandGUID: "for ib-sriov"},
		},
		RDMA: RDMA{RDMA: RDMAAuto}, Device: "a", HWAddr: "b", KernelPath: "c", PCIBusID: "d", DeviceID: "e", DPDKMode: true,
		UseInterfaceNetwork: true, MTU: 9000, Allow: []string{"uplink"},
	}
	// Users write keys in any case.
	for name, config := range map[string]string{"as documented": everyHostDevice, "in other cases": otherCases(everyHostDevice)} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseHostDevice([]byte(config))
			if err != nil {
				t.Fatal(err)
			}
			if string(got.Raw) != config {
				t.Error("Raw is not what came")
			}
			got.Raw, got.parsed = nil, nil
			got.PrevResult = bytes.ToLower(got.PrevResult)
			want.PrevResult = bytes.ToLower(want.PrevResult)
			if !reflect.DeepEqual(*got, want) {
				t.Errorf("got  %+v\nwant %+v", *got, want)
			}
		})
	}
}

// otherCases changes the case of each key's first letter.
func otherCases(config string) string {
	var b strings.Builder
	parts := strings.Split(config, `"`)
	for i, part := range parts {
		if i%2 == 1 && strings.HasPrefix(strings.TrimSpace(parts[i+1]), ":") {
			first := strings.ToUpper(part[:1])
			if first == part[:1] {
				first = strings.ToLower(part[:1])
			}
			part = first + part[1:]
		}
		if i > 0 {
			b.WriteByte('"')
		}
		b.WriteString(part)
	}
	return b.String()
}

func TestDefaults(t *testing.T) {
	hd, err := ParseHostDevice([]byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	mv, err := ParseMacvlan([]byte(`{}`), Args{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*Common{&hd.Common, &mv.Common} {
		if c.CNIVersion != "0.1.0" || c.StateDir != nodefile.DefaultStateDir || c.IPAM.Type != "" {
			t.Errorf("%+v", c)
		}
		if list, listed := c.Valid(); listed || list != nil {
			t.Errorf("a list of attachments that nobody sent: %v", list)
		}
	}
	if mv.Mode != "bridge" || mv.MTU != 0 {
		t.Errorf("macvlan: %+v", mv)
	}
	if mac, err := mv.HardwareAddr(); mac != nil || err != nil {
		t.Errorf("MAC %v, %v", mac, err)
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		config string
		code   uint
		text   []string
	}{
		{``, cnierr.Decode, []string{"not a JSON object"}},
		{`{`, cnierr.Decode, []string{"not a JSON object"}},
		{`[]`, cnierr.Decode, []string{"the whole cannot be an array", "an object"}},
		{`{"cniVersion":1}`, cnierr.Decode, []string{`"cniVersion" cannot be a number`, "as a string"}},
		{`{"name":{}}`, cnierr.Decode, []string{`"name" cannot be an object`}},
		{`{"mtu":"9000"}`, cnierr.Decode, []string{`"mtu" cannot be a string`, "a whole number"}},
		{`{"mtu":1.5}`, cnierr.Decode, []string{`"mtu" cannot be a number 1.5`}},
		{`{"ipam":[]}`, cnierr.Decode, []string{`"ipam" cannot be an array`, "an object"}},
		{`{"ipam":{"type":7}}`, cnierr.Decode, []string{`"ipam.type" cannot be a number`}},
		{`{"dns":{"nameservers":"10.0.0.1"}}`, cnierr.Decode, []string{`"dns.nameservers" cannot be a string`, "a list"}},
		{`{"runtimeConfig":{"mac":7}}`, cnierr.Decode, []string{`"runtimeConfig.mac"`}},
		{`{"rdma":true}`, cnierr.Decode, []string{`"rdma" cannot be a bool`, "a string"}},
		{`{"cni.dev/valid-attachments":{}}`, cnierr.Decode, []string{`"cni.dev/valid-attachments" cannot be an object`}},
		{`{"stateDir":7}`, cnierr.Decode, []string{`"stateDir"`}},
		{`{"stateDir":"run/rail-cni"}`, cnierr.InvalidConfig, []string{`"stateDir": "run/rail-cni" is not an absolute path`}},
		{`{"mtu":-1}`, cnierr.InvalidConfig, []string{"invalid MTU -1"}},
		{`{"mtu":4294968796}`, cnierr.InvalidConfig, []string{"invalid MTU 4294968796"}},
		{`{"rdma":"yes"}`, cnierr.InvalidConfig, []string{`"rdma": "yes"`}},
	} {
		for name, parse := range map[string]func() error{
			"host-device": func() error { _, err := ParseHostDevice([]byte(c.config)); return err },
			"macvlan":     func() error { _, err := ParseMacvlan([]byte(c.config), Args{}); return err },
		} {
			err := parse()
			if cnierr.Code(err) != c.code {
				t.Errorf("%s %s: error %v (code %d), want code %d", name, c.config, err, cnierr.Code(err), c.code)
				continue
			}
			for _, text := range c.text {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%s %s: error %q does not say %q", name, c.config, err, text)
				}
			}
		}
	}
	for config, text := range map[string]string{
		`{"DPDKMode":"true"}`: `"DPDKMode" cannot be a string; write it as true or false`, `{"allow":"uplink"}`: `"allow" cannot be a string; write it as a list`,
		`{"device":7}`: `"device" cannot be a number`, `{"useInterfaceNetwork":1}`: `"useInterfaceNetwork"`,
	} {
		if c, err := ParseHostDevice([]byte(config)); c != nil || failure.KindOf(err) != failure.Decode || !strings.Contains(err.Error(), text) {
			t.Errorf("host-device %s: %v, %v", config, c, err)
		}
	}
	for _, tos := range []string{"-1", "256"} {
		config := []byte(`{"type":"rdma","roceTos":` + tos + "}")
		_, nic := ParseHostDevice(config)
		_, chained := ParseRDMAChained(config)
		for _, err := range []error{nic, chained} {
			if failure.KindOf(err) != failure.InvalidConfig || !strings.Contains(err.Error(), `"roceTos": `+tos+` is not a type of service; use 0 to 255`) {
				t.Errorf("type of service %s: %v", tos, err)
			}
		}
	}
	for _, tos := range []string{"0", "255"} { // the first and the last
		config := []byte(`{"type":"rdma","roceTos":` + tos + "}")
		nic, err := ParseHostDevice(config)
		if err != nil || fmt.Sprint(*nic.RoCETOS) != tos {
			t.Errorf("type of service %s: %v", tos, err)
		}
		chained, err := ParseRDMAChained(config)
		if err != nil || fmt.Sprint(*chained.RoCETOS) != tos {
			t.Errorf("type of service %s: %v", tos, err)
		}
	}
	c, err := ParseHostDevice([]byte(`{"allow":["bpf","everything"]}`))
	if c != nil || failure.KindOf(err) != failure.InvalidConfig || !strings.Contains(err.Error(), `"allow" has no key "everything"; use uplink, member, `) {
		t.Errorf("an override that is none: %v, %v", c, err)
	}
	for config, want := range map[string]struct {
		code uint
		text string
	}{
		`{"mode":"l2"}`:                     {cnierr.InvalidConfig, `unknown macvlan mode: "l2"`},
		`{"mode":"Bridge"}`:                 {cnierr.InvalidConfig, "use bridge, private, vepa or passthru"},
		`{"mac":"02:00"}`:                   {cnierr.InvalidConfig, `MAC address "02:00"`},
		`{"mac":"02:00:00:00:00:00:00:01"}`: {cnierr.InvalidConfig, "not six bytes long"},
		`{"bcqueuelen":-1}`:                 {cnierr.Decode, `"bcqueuelen"`},
		`{"linkInContainer":"x"}`:           {cnierr.Decode, `"linkInContainer"`},
	} {
		if c, err := ParseMacvlan([]byte(config), Args{}); c != nil || cnierr.Code(err) != want.code || !strings.Contains(err.Error(), want.text) {
			t.Errorf("macvlan %s: %v, %v (code %d)", config, c, err, cnierr.Code(err))
		}
	}
}

func TestMacvlanKeys(t *testing.T) {
	got, err := ParseMacvlan([]byte(`{"cniVersion":"0.4.0","name":"n","type":"macvlan","master":"ens2f0","mode":"passthru","mtu":1400,
		"mac":"02:00:00:00:00:01","linkInContainer":true,"bcqueuelen":77}`), Args{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Master != "ens2f0" || got.Mode != "passthru" || got.MTU != 1400 || got.MAC != "02:00:00:00:00:01" || !got.LinkInContainer || got.BCQueueLen != 77 {
		t.Errorf("%+v", got)
	}
	for _, mode := range []string{"bridge", "private", "vepa", "passthru"} {
		if c, err := ParseMacvlan(fmt.Appendf(nil, `{"mode":%q}`, mode), Args{}); err != nil || c.Mode != mode {
			t.Errorf("mode %s: %v", mode, err)
		}
	}
}

func TestMACPrecedence(t *testing.T) {
	for _, c := range []struct{ config, args, want string }{
		{`{}`, "", ""},
		{`{"mac":"02:00:00:00:00:01"}`, "", "02:00:00:00:00:01"},
		{`{"mac":"02:00:00:00:00:01"}`, "IgnoreUnknown=1;MAC=02:00:00:00:00:02", "02:00:00:00:00:02"},
		{`{"mac":"02:00:00:00:00:01","runtimeConfig":{"mac":"02:00:00:00:00:03"}}`, "", "02:00:00:00:00:03"},
		{`{"mac":"02:00:00:00:00:01","runtimeConfig":{"mac":"02:00:00:00:00:03"}}`, "MAC=02:00:00:00:00:02", "02:00:00:00:00:03"},
		{`{"mac":"nonsense","runtimeConfig":{"mac":"02:00:00:00:00:03"}}`, "", "02:00:00:00:00:03"},
		{`{"runtimeConfig":{"mac":"02-00-00-00-00-03"}}`, "", "02:00:00:00:00:03"},
	} {
		got, err := ParseMacvlan([]byte(c.config), ParseArgs(c.args))
		if err != nil {
			t.Errorf("%s %s: %v", c.config, c.args, err)
			continue
		}
		if mac, err := got.HardwareAddr(); err != nil || mac.String() != c.want {
			t.Errorf("%s %s: MAC %s, %v, want %s", c.config, c.args, mac, err, c.want)
		}
	}
}

// The three forms in which Multus passes a NAD.
func TestShapes(t *testing.T) {
	for _, c := range []struct {
		name, config string
		want         []string
	}{
		{"A: the NAD as it is", `{"device":"ens12np0"}`, nil},
		{"B: with the injected ids", `{"deviceID":"0000:3b:00.0","pciBusID":"0000:3b:00.0"}`, []string{"0000:3b:00.0", "0000:3b:00.0"}},
		{"B: a NAD that names one itself", `{"pciBusID":"0000:3b:00.1"}`, []string{"0000:3b:00.1"}},
		{"B: a NAD that writes one in upper case", `{"pciBusID":"0000:3B:00.1"}`, []string{"0000:3b:00.1"}},
		{"B: the name of an auxiliary device stays", `{"deviceID":"mlx5_core.SF.4"}`, []string{"mlx5_core.SF.4"}},
		{"C: with runtimeConfig", `{"deviceID":"1","pciBusID":"2","RuntimeConfig":{"deviceID":"3"}}`, []string{"3", "2", "1"}},
	} {
		got, err := ParseHostDevice([]byte(c.config))
		if err != nil || !reflect.DeepEqual(got.IDs(), c.want) {
			t.Errorf("%s: %q, %v, want %q", c.name, got.IDs(), err, c.want)
		}
	}
	for _, config := range users {
		if _, err := ParseHostDevice([]byte(config)); err != nil {
			t.Errorf("%s: %v", config, err)
		}
		if _, err := ParseMacvlan([]byte(config), Args{}); err != nil {
			t.Errorf("%s: %v", config, err)
		}
	}
}

func TestValidAttachments(t *testing.T) {
	one := []types.GCAttachment{{ContainerID: "c1", IfName: "net1"}}
	const list = `[{"containerID":"c1","ifname":"net1"}]`
	for _, c := range []struct {
		name, config string
		want         []types.GCAttachment
		listed       bool
	}{
		{"absent", `{}`, nil, false},
		{"null", `{"cni.dev/valid-attachments":null}`, nil, false},
		{"empty", `{"cni.dev/valid-attachments":[]}`, []types.GCAttachment{}, true},
		{"one", `{"cni.dev/valid-attachments":` + list + `}`, one, true},
		{"legacy", `{"cni.dev/attachments":` + list + `}`, one, true},
		{"legacy and empty", `{"cni.dev/attachments":[]}`, []types.GCAttachment{}, true},
		{"both, as libcni sends them", `{"cni.dev/attachments":` + list + `,"cni.dev/valid-attachments":` + list + `}`, one, true},
		{"both, and they differ", `{"cni.dev/attachments":` + list + `,"cni.dev/valid-attachments":[]}`, []types.GCAttachment{}, true},
	} {
		parsed, err := ParseHostDevice([]byte(c.config))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got, listed := parsed.Valid(); listed != c.listed || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, listed %v", c.name, got, listed)
		}
	}
}

func TestAtLeast(t *testing.T) {
	for _, c := range []struct {
		version, asked string
		want           bool
	}{{"1.1.0", "1.1.0", true}, {"1.0.0", "1.1.0", false}, {"0.3.1", "0.4.0", false}, {"0.10.0", "0.4.0", true}, {"nonsense", "0.1.0", false}} {
		if got := (&Common{CNIVersion: c.version}).AtLeast(c.asked); got != c.want {
			t.Errorf("%s at least %s: %v", c.version, c.asked, got)
		}
	}
}

func TestLenient(t *testing.T) {
	for _, c := range []struct {
		name, config string
		want         Common
	}{
		{"nothing", ``, Common{CNIVersion: "0.1.0", StateDir: nodefile.DefaultStateDir}},
		{"cut off", `{"cniVersion":"1.0.0","name":"n"`, Common{CNIVersion: "0.1.0", StateDir: nodefile.DefaultStateDir}},
		{"another JSON value", `[1,2]`, Common{CNIVersion: "0.1.0", StateDir: nodefile.DefaultStateDir}},
		{
			"mistakes in other keys", `{"cniVersion":"1.0.0","name":"n","type":"t","ipam":{"type":"i"},"stateDir":"/x","mtu":"9000","prevResult":7,"dns":[]}`,
			Common{CNIVersion: "1.0.0", Name: "n", Type: "t", IPAM: IPAM{Type: "i"}, StateDir: "/x"},
		},
		{
			"mistakes in these keys", `{"cniVersion":1,"name":[],"type":{},"ipam":"i","stateDir":7}`,
			Common{CNIVersion: "0.1.0", StateDir: nodefile.DefaultStateDir},
		},
		{"one mistake does not take the others along", `{"name":7,"type":"t","stateDir":"/x"}`, Common{CNIVersion: "0.1.0", Type: "t", StateDir: "/x"}},
		{"a relative state directory", `{"stateDir":"x","name":"n"}`, Common{CNIVersion: "0.1.0", Name: "n", StateDir: nodefile.DefaultStateDir}},
		{"in other cases", `{"Name":"n","STATEDIR":"/x/"}`, Common{CNIVersion: "0.1.0", Name: "n", StateDir: "/x"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Lenient([]byte(c.config))
			if string(got.Raw) != c.config {
				t.Errorf("Raw is %q", got.Raw)
			}
			got.Raw, got.parsed = nil, nil
			if !reflect.DeepEqual(*got, c.want) {
				t.Errorf("got  %+v\nwant %+v", *got, c.want)
			}
		})
	}
}

func TestParseArgs(t *testing.T) {
	for in, want := range map[string]Args{
		"": {},
		"IgnoreUnknown=true;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod;K8S_POD_INFRA_CONTAINER_ID=c;K8S_POD_UID=u": {PodNamespace: "ns", PodName: "pod", PodUID: "u"},
		"MAC=02:00:00:00:00:01":         {MAC: "02:00:00:00:00:01"},
		";;MAC=;K8S_POD_NAME=a=b;x;=y;": {PodName: "a=b"},
		"k8s_pod_name=pod":              {},
		"K8S_POD_NAME=a;K8S_POD_NAME=b": {PodName: "b"},
	} {
		if got := ParseArgs(in); got != want {
			t.Errorf("%q: %+v, want %+v", in, got, want)
		}
	}
}

// checkCommon makes the checks that hold for every accepted configuration.
func checkCommon(t *testing.T, c *Common) {
	t.Helper()
	if !filepath.IsAbs(c.StateDir) || c.StateDir != filepath.Clean(c.StateDir) || c.CNIVersion == "" {
		t.Errorf("accepted: %+v", c)
	}
	kept, err := c.Kept()
	if err == nil && (!json.Valid(kept) || len(kept) > 16<<10) {
		t.Errorf("kept as %q", kept)
	}
	c.Valid()
}

func seed(f *testing.F) {
	f.Helper()
	for _, s := range append(users, everyHostDevice, ``, `{`, `null`, `{"mtu":4294968796}`, `{"stateDir":"x"}`, `{"ipam":null,"runtimeConfig":null}`) {
		f.Add([]byte(s))
	}
}

func FuzzParseHostDevice(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, config []byte) {
		c, err := ParseHostDevice(config)
		if (c == nil) == (err == nil) {
			t.Fatalf("%v and %v", c, err)
		}
		if err != nil {
			if code := cnierr.Code(err); code != cnierr.Decode && code != cnierr.InvalidConfig {
				t.Errorf("code %d: %v", code, err)
			}
			return
		}
		checkCommon(t, &c.Common)
		if int64(c.MTU) != int64(uint32(c.MTU)) {
			t.Errorf("MTU %d", c.MTU)
		}
		for _, id := range c.IDs() {
			if id == "" {
				t.Error("an empty id")
			}
		}
	})
}

func FuzzParseMacvlan(f *testing.F) {
	for _, s := range users {
		f.Add([]byte(s), "MAC=02:00:00:00:00:01")
	}
	f.Add([]byte(`{"mode":"vepa","bcqueuelen":1}`), "MAC=x")
	f.Fuzz(func(t *testing.T, config []byte, args string) {
		c, err := ParseMacvlan(config, ParseArgs(args))
		if (c == nil) == (err == nil) {
			t.Fatalf("%v and %v", c, err)
		}
		if err != nil {
			return
		}
		checkCommon(t, &c.Common)
		if mac, err := c.HardwareAddr(); err != nil || len(mac) != 0 && len(mac) != 6 || c.Mode == "" {
			t.Errorf("accepted MAC %v (%v), mode %q", mac, err, c.Mode)
		}
	})
}

func FuzzParseArgs(f *testing.F) {
	f.Add("IgnoreUnknown=true;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod;K8S_POD_UID=u;MAC=02:00:00:00:00:01")
	f.Add(";=;;a==b")
	f.Fuzz(func(t *testing.T, s string) {
		a := ParseArgs(s)
		for _, v := range []string{a.MAC, a.PodName, a.PodNamespace, a.PodUID} {
			if strings.Contains(v, ";") || !strings.Contains(s, v) {
				t.Errorf("%q gives %q", s, v)
			}
		}
	})
}

func FuzzLenient(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, config []byte) {
		lenient := Lenient(config)
		checkCommon(t, lenient)
		// Lenient must read a valid configuration like the strict parsers.
		strict, err := ParseHostDevice(config)
		if err != nil {
			return
		}
		if lenient.Name != strict.Name || lenient.Type != strict.Type || lenient.IPAM != strict.IPAM || lenient.StateDir != strict.StateDir || lenient.CNIVersion != strict.CNIVersion {
			t.Errorf("leniently\n%+v, strictly\n%+v", lenient, strict.Common)
		}
	})
}

func TestLinkTimeout(t *testing.T) {
	const second = time.Second
	for _, c := range []struct {
		keys string
		want LinkWait
	}{
		{``, LinkWait{}},
		{`,"rdma":"off"`, LinkWait{}},
		{`,"linkTimeout":"5s"`, LinkWait{5 * second, false}},
		{`,"rdma":"required"`, LinkWait{20 * second, true}},
		{`,"rdma":"required","linkTimeout":"1m"`, LinkWait{60 * second, true}},
		{`,"rdma":"required","linkTimeout":"0"`, LinkWait{}},
	} {
		device, err := ParseHostDevice([]byte(`{"name":"n","type":"host-device","device":"ens1"` + c.keys + `}`))
		if err != nil || device.LinkWait() != c.want {
			t.Errorf("host-device %s: %+v, %v", c.keys, device.LinkWait(), err)
		}
		macvlan, err := ParseMacvlan([]byte(`{"name":"n","type":"macvlan"`+c.keys+`}`), Args{})
		if err != nil || macvlan.LinkWait() != c.want {
			t.Errorf("macvlan %s: %+v, %v", c.keys, macvlan.LinkWait(), err)
		}
		inPod, err := ParseMacvlan([]byte(`{"name":"n","type":"macvlan","linkInContainer":true`+c.keys+`}`), Args{})
		if err != nil || inPod.LinkWait().Required {
			t.Errorf("macvlan in a pod %s: %+v, %v", c.keys, inPod.LinkWait(), err)
		}
	}
	for keys, want := range map[string]LinkWait{
		``:                                      {}, // like rdma-cni, which does not look at the link
		`,"rdma":"auto"`:                        {},
		`,"rdma":"required"`:                    {20 * second, true},
		`,"linkTimeout":"5s"`:                   {5 * second, true},
		`,"linkTimeout":"0s"`:                   {},
		`,"rdma":"auto","linkTimeout":"5s"`:     {5 * second, false},
		`,"rdma":"required","linkTimeout":"0s"`: {},
	} {
		chained, err := ParseRDMAChained([]byte(`{"name":"n","type":"rdma"` + keys + `}`))
		if err != nil || chained.LinkWait() != want {
			t.Errorf("rdma %s: %+v, %v", keys, chained.LinkWait(), err)
		}
	}
	if _, err := ParseRDMAChained([]byte(`{"name":"n","type":"rdma","linkTimeout":"soon"}`)); err == nil {
		t.Error("rdma: linkTimeout soon is accepted")
	}
	for value, why := range map[string]string{`"soon"`: "soon", `"-1s"`: "a duration cannot be negative", `20`: `"linkTimeout" cannot be a number`} {
		_, err := ParseHostDevice([]byte(`{"name":"n","type":"host-device","linkTimeout":` + value + `}`))
		if err == nil || !strings.Contains(err.Error(), "linkTimeout") || !strings.Contains(err.Error(), why) {
			t.Errorf("linkTimeout %s: %v", value, err)
		}
	}
}

// With two keys that set addresses it would be unclear which addresses the interface has.
func TestTheKeptAddressIsTheOnlyOne(t *testing.T) {
	for keys, want := range map[string]string{
		``: "", `, "ipam": {}`: "", `, "useInterfaceNetwork": false`: "",
		`, "ipam": {"type": "whereabouts"}`: `"keepAddress" and "ipam" both`,
		`, "useInterfaceNetwork": true`:     `"keepAddress" and "useInterfaceNetwork" both`,
	} {
		_, err := ParseHostDevice([]byte(`{"name": "n", "type": "host-device", "device": "ens1", "keepAddress": true` + keys + `}`))
		if want == "" && err != nil || want != "" && (failure.KindOf(err) != failure.InvalidConfig || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", keys, err, want)
		}
	}
}

// The cure "set a table" is not enough for a network that needs the rail for something else as
// well.
func TestCureOfAMissingRail(t *testing.T) {
	for keys, want := range map[string]bool{
		`, "rail": "auto"`: false,
		`, "ipam": {"type": "whereabouts", "range": "10.${rail}.0.0/16"}`: false,
		``: true,
	} {
		keys += `, "routing": {"mode": "source"}}`
		host, err := ParseHostDevice([]byte(`{"name": "n", "type": "host-device"` + keys))
		if err != nil {
			t.Fatal(err)
		}
		macvlan, err := ParseMacvlan([]byte(`{"name": "n", "type": "macvlan"`+keys), Args{})
		if err != nil {
			t.Fatal(err)
		}
		for _, cured := range []error{host.RailCure(errors.New("no rail")), macvlan.RailCure(errors.New("no rail"))} {
			if strings.Contains(cured.Error(), tableCure) != want {
				t.Errorf("%s: %v", keys, cured)
			}
		}
	}
}

func TestJournalIsBesideTheState(t *testing.T) {
	for state, want := range map[string]string{nodefile.DefaultStateDir: "/var/lib/rail-cni/ipam-journal", "/run/rail-cni-b": "/run/rail-cni-b/ipam-journal"} {
		if got := JournalDir(state); got != want {
			t.Errorf("%s: %s", state, got)
		}
	}
}

func TestResultsWithNullAreRefused(t *testing.T) {
	for result, whole := range map[string]bool{
		`{}`: true, `{"interfaces": [{}], "ips": [{}], "routes": null}`: true,
		`null`: false, `{`: false, `{"interfaces": [null]}`: false, `{"ips": [{}, null]}`: false, `{"routes": [null]}`: false,
	} {
		if err := WholeResult([]byte(result)); (err == nil) != whole {
			t.Errorf("%s: %v", result, err)
		}
	}
}

// A key that only host-device has would leave the interface without an address.
func TestMacvlanCannotKeepTheAddressOfTheNIC(t *testing.T) {
	for value, refused := range map[string]bool{"true": true, `"yes"`: true, "false": false, "null": false} {
		_, err := ParseMacvlan([]byte(`{"cniVersion": "1.0.0", "name": "n", "type": "macvlan", "master": "ens1", "keepAddress": `+value+`}`), Args{})
		if refused != (err != nil) || refused && (cnierr.Code(err) != cnierr.InvalidConfig || !strings.Contains(err.Error(), `"keepAddress" is for host-device`) || !strings.Contains(err.Error(), "remove the key")) {
			t.Errorf("%s: %v", value, err)
		}
	}
}
