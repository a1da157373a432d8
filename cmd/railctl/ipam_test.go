package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/report"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/store"
)

// ipamLab is a namespace of pools on a real control plane.
type ipamLab struct {
	t     *testing.T
	plane *controlplane.Plane
	ns    string
}

func (l *ipamLab) create(path string, object any) {
	l.t.Helper()
	code, answer, err := l.plane.Admin().Create(context.Background(), path, object)
	if err != nil || code != 201 {
		l.t.Fatal(code, string(answer), err)
	}
}

func (l *ipamLab) cr(plural, kind, name string, rest map[string]any) {
	l.t.Helper()
	o := map[string]any{"apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": kind, "metadata": map[string]any{"name": name}}
	maps.Copy(o, rest)
	l.create("/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/"+l.ns+"/"+plural, o)
}

// pool makes an IPPool. holders has the pod of each key. A pod "" is a placeholder.
func (l *ipamLab) pool(name, prefix string, holders map[string]string) {
	l.t.Helper()
	allocations := map[string]any{}
	for key, pod := range holders {
		ref := ""
		if pod != "" {
			ref = l.ns + "/" + pod
		}
		allocations[key] = map[string]any{"id": "c-" + pod, "podref": ref, "ifname": "net1"}
	}
	l.cr("ippools", "IPPool", name, map[string]any{"spec": map[string]any{"range": prefix, "allocations": allocations}})
}

func (l *ipamLab) reservation(name, pod string) {
	l.t.Helper()
	l.cr("overlappingrangeipreservations", "OverlappingRangeIPReservation", name, map[string]any{"spec": map[string]any{"podref": l.ns + "/" + pod, "ifname": "net1"}})
}

func (l *ipamLab) nad(name, config string) {
	l.t.Helper()
	l.create("/apis/k8s.cni.cncf.io/v1/namespaces/"+l.ns+"/network-attachment-definitions", map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"name": name}, "spec": map[string]any{"config": config},
	})
}

func (l *ipamLab) macvlan(name, ipam string) {
	l.t.Helper()
	l.nad(name, `{"cniVersion":"1.0.0","name":"`+name+`","type":"macvlan","ipam":{"type":"whereabouts",`+ipam+`}}`)
}

func (l *ipamLab) pod(name string) {
	l.t.Helper()
	l.create("/api/v1/namespaces/"+l.ns+"/pods", map[string]any{
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "none"}}},
	})
}

func (l *ipamLab) railctl(args ...string) (stdout, stderr string, code int) {
	l.t.Helper()
	return plainRun(append(append([]string{"ipam"}, args...), "--kubeconfig", l.plane.AdminKubeconfig(), "--namespace", l.ns, "--state-dir", l.t.TempDir())...)
}

func TestIPAM(t *testing.T) {
	plane := controlplane.Start(t, controlplane.Options{})
	for name, test := range map[string]func(*ipamLab){
		"show": testIPAMShow, "explain": testIPAMExplain, "check": testIPAMCheck, "gc": testIPAMGC, "blocks": testIPAMBlocks,
		"terminal": testIPAMTerminal,
	} {
		t.Run(name, func(t *testing.T) {
			l := &ipamLab{t: t, plane: plane, ns: "ns-" + name}
			l.create("/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": l.ns}})
			test(l)
			// The networks are deleted, because other tests read all networks of the cluster.
			if _, _, err := plane.Admin().Delete(context.Background(), "/apis/k8s.cni.cncf.io/v1/namespaces/"+l.ns+"/network-attachment-definitions"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func testIPAMShow(l *ipamLab) {
	t := l.t
	l.pool("10.0.0.0-24", "10.0.0.0/24", map[string]string{"1": "a", "2": "b", "3": "c", "4": "", "5": "d"})
	l.pool("2001-db8---64", "2001:db8::/64", map[string]string{"1": "a"})
	for addr, pod := range map[string]string{"10.0.0.1": "a", "10.0.0.3": "other", "10.0.0.5": "d"} {
		l.reservation(addr, pod)
	}
	l.macvlan("net", `"range":"10.0.0.0/24","gateway":"10.0.0.1"`)
	out, errOut, code := l.railctl("show")
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	contains(t, "stderr", errOut, "1 reservations have no entry, for example 10.0.0.3")
	equal(t, "show", squeezed(out), strings.Join([]string{
		"POOL RANGE USED FREE SIZE NETWORKS PROBLEMS",
		"10.0.0.0-24 10.0.0.0/24 5 249 254 ns-show/net 10.0.0.2 of ns-show/b: the reservation is missing (and 2 more)",
		"2001-db8---64 2001:db8::/64 1 2^64 2^64 - -",
	}, "\n"))
	out, _, _ = l.railctl("show", "10.0.0.0/24")
	equal(t, "show POOL", squeezed(out), strings.Join([]string{
		"ADDRESS POD IFNAME CONTAINER RESERVATION PROBLEM",
		"10.0.0.1 ns-show/a net1 c-a 10.0.0.1 it is the gateway of network ns-show/net",
		"10.0.0.2 ns-show/b net1 c-b - the reservation is missing",
		"10.0.0.3 ns-show/c net1 c-c - ns-show/other has the reservation 10.0.0.3",
		"10.0.0.5 ns-show/d net1 c-d 10.0.0.5 -",
	}, "\n"))
	ofNetwork, _, _ := l.railctl("show", "ns-show/net")
	equal(t, "show NAMESPACE/NETWORK", ofNetwork, out)
	out, _, _ = l.railctl("show", "-o", "json")
	views := listed[report.Pool](t, out)
	if len(views) != 2 || views[0].Placeholders != 1 || len(views[0].Holders) != 4 || len(views[0].Problems) != 3 {
		t.Errorf("%+v", views)
	}
	_, errOut, code = l.railctl("show", "none")
	if code != 1 || !strings.Contains(errOut, `no pool "none"`) {
		t.Errorf("%d: %s", code, errOut)
	}
}

func testIPAMExplain(l *ipamLab) {
	t := l.t
	l.pool("10.0.0.0-24", "10.0.0.0/24", map[string]string{"3": "a", "4": ""})
	l.reservation("10.0.0.5", "wide")
	config := `"range":"10.0.0.0/24","gateway":"10.0.0.2","exclude":["10.0.0.0/31"],"ipRanges":[{"range":"10.9.0.0/30"}]`
	l.macvlan("net", config)
	l.pool("10.9.0.0-30", "10.9.0.0/30", map[string]string{"1": "a", "2": "b"})
	out, errOut, code := l.railctl("explain", l.ns+"/net")
	equal(t, "explain", out, strings.TrimPrefix(`
network ns-explain/net, pool 10.0.0.0-24: from 10.0.0.1 to 10.0.0.254
  10.0.0.1: it is excluded
  10.0.0.2: it is a gateway
  10.0.0.3: held by ns-explain/a
  10.0.0.4: held by a placeholder
  10.0.0.5: another pool has reserved it for ns-explain/wide
  10.0.0.6: free, comes next
network ns-explain/net, pool 10.9.0.0-30: from 10.9.0.1 to 10.9.0.2
  10.9.0.1: held by ns-explain/a
  10.9.0.2: held by ns-explain/b
`, "\n"))
	contains(t, "stderr", errOut, "Could not allocate IP in range: ip: 10.9.0.1 / - 10.9.0.2 / range: 10.9.0.0/30")
	if code != 1 {
		t.Errorf("exit code %d", code)
	}

	// A list in a file, with node slices; the pool does not exist yet.
	file := filepath.Join(t.TempDir(), "net.conflist")
	list := `{"cniVersion":"1.0.0","name":"sliced","plugins":[{"type":"macvlan","ipam":{"type":"whereabouts","range":"10.1.0.0/16","node_slice_size":"/24"}},{"type":"tuning"}]}`
	if err := os.WriteFile(file, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errOut, _ = l.railctl("explain", file)
	contains(t, "without --node", errOut, "--node")
	_, errOut, _ = l.railctl("explain", file, "--node", "node1")
	contains(t, "without slices", errOut, `NodeSlicePool sliced has no slice for node "node1"`)
	l.cr("nodeslicepools", "NodeSlicePool", "sliced", map[string]any{
		"spec":   map[string]any{"range": "10.1.0.0/16", "sliceSize": "/24"},
		"status": map[string]any{"allocations": []any{map[string]any{"nodeName": "node1", "sliceRange": "10.1.3.0/24"}}},
	})
	out, _, _ = l.railctl("explain", file, "--node", "node1")
	contains(t, "of a node", out, "pool node1-10.1.3.0-24", "10.1.3.1: free, comes next")
	bounded := strings.Replace(list, `"node_slice_size"`, `"range_start":"10.1.3.250","range_end":"10.1.9.9","node_slice_size"`, 1)
	for bounds, want := range map[string]string{
		bounded: "pool node1-10.1.3.0-24: from 10.1.3.250 to 10.1.3.254",
		strings.Replace(bounded, "10.1.3.250", "10.1.4.1", 1): "no address of the slice 10.1.3.0/24 lies between 10.1.4.1 and 10.1.9.9",
	} {
		if err := os.WriteFile(file, []byte(bounds), 0o600); err != nil {
			t.Fatal(err)
		}
		out, errOut, _ = l.railctl("explain", file, "--node", "node1")
		contains(t, "with bounds", out+errOut, want)
	}
	_, errOut, _ = l.railctl("explain", "nothing")
	contains(t, "neither", errOut, "namespace/name")
}

func testIPAMCheck(l *ipamLab) {
	t := l.t
	l.macvlan("fine", `"range":"10.0.0.0/24","gateway":"10.0.0.1"`)
	out, errOut, code := l.railctl("check")
	if code != 0 || errOut != "" {
		t.Errorf("%d: %s", code, errOut)
	}
	contains(t, "check", out, "nothing is wrong with the 1 ranges")

	l.macvlan("same", `"range":"10.0.0.0/24"`)
	l.macvlan("wide", `"range":"10.0.0.0/16","enable_overlapping_ranges":false,"exclude":["10.0.0.1/32"]`)
	l.macvlan("apart", `"range":"10.0.0.0/24","network_name":"other"`)
	l.macvlan("sliced", `"range":"10.2.0.0/16","node_slice_size":"/26"`)
	l.macvlan("broken", `"range":"10.3.0.0/33"`)
	l.macvlan("held", `"range":"10.4.0.0/24","gateway":"10.4.0.1","allow_gateway":true`)
	l.pool("10.4.0.0-24", "10.4.0.0/24", map[string]string{"1": "a"})
	l.nad("elsewhere", "") // a file on the nodes
	l.nad("bridge", `{"cniVersion":"1.0.0","name":"b","type":"bridge","ipam":{"type":"host-local"}}`)
	out, errOut, code = l.railctl("check", "-o", "json")
	if code != 1 {
		t.Errorf("exit code %d: %s", code, errOut)
	}
	got := map[string]int{}
	for _, v := range listed[report.Verdict](t, out) {
		got[fmt.Sprintf("%s %s: %s", v.Level, strings.TrimPrefix(v.Network, l.ns+"/"), v.What)]++
	}
	for _, want := range []string{
		"error same: the network hands out 10.0.0.1, the gateway of network ns-check/fine",
		"error fine: 10.0.0.0/24 overlaps 10.0.0.0/16 of network ns-check/wide: one address may be assigned twice",
		"error same: 10.0.0.0/24 overlaps 10.0.0.0/16 of network ns-check/wide: one address may be assigned twice",
		fmt.Sprintf("warning wide: 10.0.0.0/16 has 65534 addresses, and one IPPool holds about %d", api.MaxEntries),
		"error sliced: there is no NodeSlicePool sliced: no pod gets an address",
		"error held: the gateway 10.4.0.1 is held by ns-check/a",
		"warning held: the gateway 10.4.0.1 may be handed out",
	} {
		if got[want] != 1 {
			t.Errorf("not said: %s", want)
		}
		delete(got, want)
	}
	for what := range got {
		if len(got) != 1 || !strings.Contains(what, "broken") || !strings.Contains(what, "10.3.0.0/33") {
			t.Errorf("said: %s", what)
		}
	}
}

func testIPAMGC(l *ipamLab) {
	t := l.t
	l.pod("lives")
	l.pool("10.0.0.0-24", "10.0.0.0/24", map[string]string{"1": "lives", "2": "gone"})
	l.reservation("10.0.0.1", "lives")
	l.reservation("10.0.0.2", "gone")
	const row = "10.0.0.0-24 10.0.0.2 10.0.0.2 ns-gc/gone net1 stale entry its pod is gone "
	const head = "POOL ADDRESS RESERVATION POD IFNAME WHAT WHY OUTCOME\n"
	for range 2 { // a dry run changes nothing
		out, errOut, code := l.railctl("gc", "--dry-run")
		equal(t, "gc --dry-run", squeezed(out), head+row+"would be freed")
		if code != 0 || errOut != "" {
			t.Errorf("%d: %s", code, errOut)
		}
	}
	out, errOut, code := l.railctl("gc", "--grace", "1s")
	equal(t, "gc", squeezed(out), head+row+"freed")
	if code != 0 || errOut != "" {
		t.Errorf("%d: %s", code, errOut)
	}
	out, _, _ = l.railctl("gc", "--grace", "0s")
	contains(t, "gc again", out, "nothing to free")
	out, _, _ = l.railctl("show")
	contains(t, "show", squeezed(out), "10.0.0.0-24 10.0.0.0/24 1 253 254 - -")

	// Addresses that the node's plugins could not free must be freed at the plugins' own server and
	// at no other server. Any kubeconfig of this command that leads to that server must work.
	elsewhere, err := l.plane.Kubeconfig(controlplane.Credential{Token: "t"}, controlplane.Form{Path: filepath.Join(t.TempDir(), "kubeconfig"), Server: "https://127.0.0.1:1", Namespace: l.ns})
	if err != nil {
		t.Fatal(err)
	}
	here, err := l.plane.Kubeconfig(controlplane.Credential{Token: "t"}, controlplane.Form{Path: filepath.Join(t.TempDir(), "kubeconfig"), Namespace: l.ns})
	if err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	for kubeconfig, key := range map[string]string{elsewhere: "c-elsewhere", here: "c-lives"} {
		o := ipam.Owner{ContainerID: key, IfName: "net1"}
		if err := (store.Journal{Path: netconf.JournalDir(state)}).Add(store.Endpoint{Kubeconfig: kubeconfig}, o, []ipam.Pool{{Prefix: netip.MustParsePrefix("10.0.0.0/24")}}); err != nil {
			t.Fatal(err)
		}
	}
	out, errOut, code = plainRun("ipam", "gc", "--grace", "0s", "--kubeconfig", l.plane.AdminKubeconfig(), "--namespace", l.ns, "--state-dir", state)
	if code != 0 {
		t.Errorf("%d: %s%s", code, out, errOut)
	}
	contains(t, "stderr", errOut, "deferred DELs still wait")
	waiting, err := store.Journal{Path: netconf.JournalDir(state)}.Waiting()
	if err != nil || len(waiting) != 1 || waiting[store.Endpoint{Kubeconfig: elsewhere}] != 1 {
		t.Errorf("the journal has %v, want that of the other server: %v", waiting, err)
	}
	out, _, _ = l.railctl("show")
	contains(t, "show", squeezed(out), "10.0.0.0-24 10.0.0.0/24 0 254 254 - -")
}

func TestKubeconfigOfTheEnvironmentIsAList(t *testing.T) {
	// serving returns a kubeconfig, and the URL of its server, which refuses
	// all requests.
	serving := func() (path, url string) {
		s := httptest.NewServer(http.NotFoundHandler())
		t.Cleanup(s.Close)
		path = t.TempDir() + "/kubeconfig"
		config := "clusters: [{name: c, cluster: {server: '" + s.URL + "'}}]\nusers: [{name: u}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		return path, "at " + s.URL + ":"
	}
	one, atOne := serving()
	two, atTwo := serving()
	for _, c := range []struct {
		env        []string
		flag, says string
	}{
		{[]string{one}, "", atOne},
		{[]string{one, two}, "", atOne},
		{[]string{"", "/nonexistent", two, one}, "", atTwo},
		{[]string{one, two}, two, atTwo},
		{[]string{"/nonexistent", "/nonexistent/either"}, "", "/nonexistent, /nonexistent/either: "},
	} {
		t.Setenv("KUBECONFIG", strings.Join(c.env, string(os.PathListSeparator)))
		for _, command := range [][]string{{"ipam", "show"}, {"uninstall"}} {
			_, errOut, code := plainRun(append(command, "--kubeconfig", c.flag)...)
			if code != 1 {
				t.Errorf("%v with %v: exit code %d", command, c.env, code)
			}
			contains(t, fmt.Sprint(command, " with ", c.env), errOut, c.says)
		}
	}
}

func TestIPAMWithoutAClusterNamesTheCure(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	_, errOut, code := plainRun("ipam", "show")
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	contains(t, "stderr", errOut, "--kubeconfig")
}
