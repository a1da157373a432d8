package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

func TestShowWithoutALedgerMakesNone(t *testing.T) {
	l := newLab(t)
	contains(t, "table", l.must("show"), "no attachments: there is no ledger at "+l.state)
	equal(t, "JSON", l.must("show", "-o", "json"), "[]\n")
	equal(t, "YAML", l.must("show", "-o", "yaml"), "[]\n")
	contains(t, "gc", l.must("gc"), "nothing to end")
	equal(t, "JSON of gc", l.must("gc", "-o", "json"), "[]\n")
	if _, err := os.Stat(l.state); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the state directory exists after a look: %v", err)
	}
}

func TestShowTable(t *testing.T) {
	l := newLab(t)
	l.lend()
	l.share("", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")
	equal(t, "railctl show", squeezed(l.must("show")), `POD IFNAME PLUGIN NETWORK NIC PCI MTU LINK ADDRESSES AGE PHASE STATE
default/web-0 net1 host-device roce-net1 ens12np0 - 9000 up 172.31.1.2/24 AGE lent alive
0123456789ab… net1 macvlan rdma-net ens2f0 - 4000 up - AGE lent alive`)
}

func TestShowTellsALinkThatIsDown(t *testing.T) {
	l := newLab(t)
	l.lend().IP("link", "set", "net1", "down")
	contains(t, "railctl show", squeezed(l.must("show")), "ens12np0 - 9000 down 172.31.1.2/24")
}

func TestShowJSONAndYAMLSayTheSame(t *testing.T) {
	l := newLab(t)
	pod := l.lend()
	out := l.must("show", "-o", "json")
	have := listed[inventory.Attachment](t, out)
	if len(have) != 1 {
		t.Fatalf("%d attachments, not 1:\n%s", len(have), out)
	}
	a := have[0]
	if a.Created.IsZero() || a.MAC == "" {
		t.Errorf("no time or MAC:\n%s", out)
	}
	want := inventory.Attachment{
		Pod: "default/web-0", ContainerID: "c-web-0", IfName: "net1", Plugin: "host-device", Network: "roce-net1",
		NIC: "ens12np0", MAC: a.MAC, MTU: 9000, Link: inventory.LinkUp, Addresses: []string{"172.31.1.2/24"}, Created: a.Created,
		Phase: "lent", State: inventory.Alive, PodNetns: pod.Path, HostNetns: l.node.ID.String(),
	}
	if !reflect.DeepEqual(a, want) {
		t.Errorf("is\n%+v\nshould be\n%+v", a, want)
	}
	var fromYAML, fromJSON any
	text := l.must("show", "-o", "yaml")
	if err := errors.Join(yaml.Unmarshal([]byte(text), &fromYAML), yaml.Unmarshal([]byte(out), &fromJSON)); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(fromYAML, fromJSON) {
		t.Errorf("YAML:\n%s\nJSON:\n%s", text, out)
	}
	contains(t, "YAML", text, "- pod: default/web-0\n  containerID: c-web-0\n  ifname: net1\n", "  addresses:\n    - 172.31.1.2/24\n")
}

func TestShowHasTheSettingsOfVirtualFunctions(t *testing.T) {
	settings := map[string]string{"trust": "on", "VLAN": "100 qos 5 802.1ad"}
	list := []inventory.Attachment{
		{Pod: "default/a", VF: &inventory.Function{PF: "0000:01:00.0", Number: 3, Settings: settings}},
		{Pod: "default/b", RDMA: &inventory.RDMA{}},
	}
	s := &shown{wide: true}
	header := s.header(true, true)
	at := slices.Index(header, "VF SETTINGS")
	if at < 0 || slices.Contains(s.header(true, false), "VF SETTINGS") {
		t.Fatalf("%q", header)
	}
	for i, want := range []string{"VLAN 100 qos 5 802.1ad, trust on", ""} {
		if row := s.row(&list[i], true, true); len(row) != len(header) || row[at] != want {
			t.Errorf("%q, not %q", row, want)
		}
	}
	text, err := json.Marshal(list)
	var have []struct {
		VF *struct{ Settings map[string]string }
	}
	if err := errors.Join(err, json.Unmarshal(text, &have)); err != nil || !maps.Equal(have[0].VF.Settings, settings) || have[1].VF != nil {
		t.Errorf("%v: %s", err, text)
	}
}

func TestYAMLKeepsWhatLooksLikeANumber(t *testing.T) {
	list := []inventory.Attachment{{ContainerID: "123456", IfName: "1e3", Network: "true", NIC: "0x10", Addresses: []string{}}}
	f := cli.YAML
	w := &writer{}
	if err := f.Print(w, list, nil); err != nil {
		t.Fatal(err)
	}
	var have []map[string]any
	if err := yaml.Unmarshal(w.text, &have); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"containerID": "123456", "ifname": "1e3", "network": "true", "nic": "0x10"} {
		if have[0][key] != want {
			t.Errorf("%s is %#v, not the text %q:\n%s", key, have[0][key], want, w.text)
		}
	}
}

type writer struct{ text []byte }

func (w *writer) Write(p []byte) (int, error) {
	w.text = append(w.text, p...)
	return len(p), nil
}

func TestShowGoesOnPastRecordsItCannotRead(t *testing.T) {
	l := newLab(t)
	l.lend()
	bad := filepath.Join(l.state, "attachments", "bad@net1.json")
	newer := filepath.Join(l.state, "attachments", "new@net1.json")
	for file, text := range map[string]string{bad: "{", newer: `{"version": 99, "containerID": "new", "ifname": "net1"}`} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"show"}, {"gc"}, {"gc", "--dry-run"}} {
		out, errOut, code := l.railctl(args...)
		if code != 1 {
			t.Errorf("%v: exit code %d, not 1", args, code)
		}
		if args[0] == "show" {
			contains(t, "show", out, "default/web-0")
		}
		contains(t, "stderr", errOut, bad, newer, "newer version")
	}
	for _, file := range []string{bad, newer} {
		if _, err := os.Stat(file); err != nil {
			t.Errorf("a look moved a record: %v", err)
		}
	}
}

func TestShowOfOtherHostNetns(t *testing.T) {
	l := newLab(t)
	l.lend()
	other := testnet.NewNetns(t, "node")
	out, errOut, code := railctlIn(other, "show", "--state-dir", l.state)
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	equal(t, "show elsewhere", out, "no attachments\n")
	contains(t, "stderr", errOut, "1 attachment(s) with other host network namespaces are not shown", "--all")
	out, errOut, _ = railctlIn(other, "show", "--all", "--state-dir", l.state)
	equal(t, "stderr", errOut, "")
	contains(t, "show --all", out, "HOST NETNS", "default/web-0", l.node.ID.String())
}

func TestShowSaysThatAPodIsGone(t *testing.T) {
	l := newLab(t)
	dead := l.share("web-1", "c1")
	l.share("web-2", "c2")
	dead.Delete() // last: an ADD would end it
	have := listed[inventory.Attachment](t, l.must("show", "-o", "json"))
	states := map[string]string{}
	for _, a := range have {
		states[a.Pod] = a.State
	}
	if !reflect.DeepEqual(states, map[string]string{"default/web-1": inventory.Gone, "default/web-2": inventory.Alive}) {
		t.Errorf("states are %v", states)
	}
}

func TestShowOfANICUnderAUserspaceDriver(t *testing.T) {
	l := newLab(t)
	l.share("web-1", "c1")
	file := filepath.Join(l.state, "attachments", "c1@net1.json")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var record map[string]any
	if err := json.Unmarshal(data, &record); err != nil {
		t.Fatal(err)
	}
	// The machine has no such device, but a record of such a device is enough.
	delete(record, "child")
	delete(record, "mtu")
	record["loan"] = map[string]any{"nic": "pci 0000:3b:00.0", "pci": "0000:3b:00.0", "driver": "vfio-pci"}
	if data, err = json.Marshal(record); err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "railctl show", squeezed(l.must("show")), `POD IFNAME PLUGIN NETWORK NIC PCI MTU LINK ADDRESSES AGE PHASE STATE
default/web-1 net1 macvlan rdma-net 0000:3b:00.0 0000:3b:00.0 - - - AGE lent alive`)
	have := listed[inventory.Attachment](t, l.must("show", "-o", "json"))
	if !slices.ContainsFunc(have, func(a inventory.Attachment) bool { return a.Driver == "vfio-pci" }) {
		t.Errorf("no driver in %+v", have)
	}
}

func TestShowSaysThatTheNodeFileHasAMistake(t *testing.T) {
	l := newLab(t)
	opened, err := ledger.Open(l.state)
	if err != nil {
		t.Fatal(err)
	}
	opened.Close()
	file := filepath.Join(t.TempDir(), "node.yaml")
	t.Setenv(nodefile.PathEnv, file)
	if err := os.WriteFile(file, []byte("nics: [{name: ens*}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l.must("show")
	if err := os.WriteFile(file, []byte("nics: all\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errOut, code := l.railctl("show")
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	contains(t, "stderr", errOut, "no NIC can be lent now", file, `"nics" must be a list`)
}
