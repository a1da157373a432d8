package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// object is a NetworkAttachmentDefinition or a pod.
type object struct {
	Kind     string `yaml:"kind"`
	Metadata struct {
		Name        string            `yaml:"name"`
		Namespace   string            `yaml:"namespace"`
		Annotations map[string]string `yaml:"annotations"`
	} `yaml:"metadata"`
	Spec struct {
		Config     string `yaml:"config"`
		Containers []struct {
			Resources struct {
				Limits map[string]int `yaml:"limits"`
			} `yaml:"resources"`
		} `yaml:"containers"`
	} `yaml:"spec"`
}

func objectsOf(t *testing.T, text string) []object {
	t.Helper()
	var all []object
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var o object
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		all = append(all, o)
	}
}

// The plugins' own parsers read each network that is printed, and a pod asks for all.
func TestGeneratedNetworksAreReadByTheirPlugins(t *testing.T) {
	for _, c := range []struct {
		args             []string
		rails            []int
		annotation       string // of rail N
		limits           []string
		gateway, typeKey string
	}{
		{
			args:  []string{"--rails", "0-7", "--range", "172.31.{rail}.0/24", "--gateway", "172.31.{rail}.1", "--resource", "rdma/roce", "--name", "roce-net", "--mtu", "9000", "--rdma", "required"},
			rails: []int{0, 1, 2, 3, 4, 5, 6, 7}, annotation: "rdma/roce_rail_{rail}",
			limits:  []string{"rdma/roce_rail_0", "rdma/roce_rail_1", "rdma/roce_rail_2", "rdma/roce_rail_3", "rdma/roce_rail_4", "rdma/roce_rail_5", "rdma/roce_rail_6", "rdma/roce_rail_7"},
			gateway: "172.31.%d.1", typeKey: "host-device",
		},
		{args: []string{"--rails", "4,0", "--range", "10.0.{rail}.16-10.0.{rail}.32/22", "--namespace", "train"}, rails: []int{0, 4}, typeKey: "host-device"},
		{args: []string{"--rails", "2", "--range", "fd00:{rail}::/64", "--type", "macvlan", "--resource", "rdma/hca"}, rails: []int{2}, annotation: "rdma/hca", limits: []string{"rdma/hca"}, typeKey: "macvlan"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			out, errOut, code := plainRun(append([]string{"generate", "nads", "--pod"}, c.args...)...)
			if code != 0 || errOut != "" {
				t.Fatalf("exit code %d, stderr %q", code, errOut)
			}
			objects := objectsOf(t, out)
			if len(objects) != len(c.rails)+1 {
				t.Fatalf("%d objects:\n%s", len(objects), out)
			}
			var names []string
			for i, rail := range c.rails {
				o := objects[i]
				names = append(names, o.Metadata.Name)
				var conf struct {
					Name, Type string
					Rail, MTU  int
				}
				if err := json.Unmarshal([]byte(o.Spec.Config), &conf); err != nil {
					t.Fatal(err)
				}
				var err error
				if c.typeKey == "macvlan" {
					_, err = netconf.ParseMacvlan([]byte(o.Spec.Config), netconf.Args{})
				} else {
					_, err = netconf.ParseHostDevice([]byte(o.Spec.Config))
				}
				addresses, ipamErr := netconf.ParseWhereabouts([]byte(o.Spec.Config), "", nil)
				if err := errors.Join(err, ipamErr); err != nil {
					t.Fatal(err)
				}
				if o.Kind != "NetworkAttachmentDefinition" || conf.Name != o.Metadata.Name || conf.Type != c.typeKey || conf.Rail != rail || !strings.HasSuffix(conf.Name, fmt.Sprintf("-%d", rail)) {
					t.Errorf("rail %d: %+v, %+v", rail, o, conf)
				}
				if c.gateway != "" && addresses.Gateway.String() != fmt.Sprintf(c.gateway, rail) {
					t.Errorf("rail %d: gateway %s", rail, addresses.Gateway)
				}
				want := strings.ReplaceAll(c.annotation, railWord, fmt.Sprint(rail))
				if o.Metadata.Annotations[resourceKey] != want {
					t.Errorf("rail %d: the annotation is %v, want %q", rail, o.Metadata.Annotations, want)
				}
			}
			pod := objects[len(objects)-1]
			if pod.Kind != "Pod" || pod.Metadata.Annotations[networksKey] != strings.Join(names, ", ") || pod.Metadata.Namespace != objects[0].Metadata.Namespace {
				t.Errorf("the pod is %+v", pod)
			}
			limits := pod.Spec.Containers[0].Resources.Limits
			for _, r := range c.limits {
				if limits[r] != 1 {
					t.Errorf("the pod asks for %v, without %s", limits, r)
				}
			}
			if len(limits) != len(c.limits) {
				t.Errorf("the pod asks for %v", limits)
			}
		})
	}
}

// One network for all rails has the addresses that the networks of each rail would have, and
// the pod names it once for each device that it requests.
func TestGeneratedNetworkOfAllRailsHasTheAddressesOfEach(t *testing.T) {
	args := []string{"generate", "nads", "--rails", "0-7", "--range", "10.{rail}.0.0/16", "--gateway", "10.{rail}.0.1", "--resource", "rdma/roce", "--mtu", "9000"}
	out, _, code := plainRun(args...)
	each := objectsOf(t, out)
	if code != 0 || len(each) != 8 {
		t.Fatalf("exit code %d:\n%s", code, out)
	}
	out, errOut, code := plainRun(append(args, "--one", "--same-host", "--pod")...)
	objects := objectsOf(t, out)
	if code != 0 || errOut != "" || len(objects) != 2 {
		t.Fatalf("exit code %d, stderr %q:\n%s", code, errOut, out)
	}
	nad, pod := objects[0], objects[1]
	conf, err := netconf.ParseHostDevice([]byte(nad.Spec.Config))
	if err != nil || !conf.Rail.Auto || conf.MTU != 9000 || nad.Metadata.Annotations[resourceKey] != "rdma/roce" {
		t.Fatalf("%v: %s", err, out)
	}
	rails := []int{0, 1, 2, 3, 4, 5, 6, 7}
	for _, rail := range rails {
		expanded, err := conf.Expanded(netconf.Variables{Rail: &rail, Rails: rails})
		if err != nil {
			t.Fatal(err)
		}
		got, err := netconf.ParseWhereabouts(expanded, "", nil)
		want, wantErr := netconf.ParseWhereabouts([]byte(each[rail].Spec.Config), "", nil)
		if err := errors.Join(err, wantErr); err != nil {
			t.Fatal(err)
		}
		if got.Ranges[0].Prefix != want.Ranges[0].Prefix || got.Gateway != want.Gateway || len(got.SameHost) != len(rails) || got.CheckEntryByEntry() != nil {
			t.Errorf("rail %d: %+v, want %+v", rail, got, want)
		}
	}
	if limits := pod.Spec.Containers[0].Resources.Limits; len(limits) != 1 || limits["rdma/roce"] != 8 {
		t.Errorf("the pod requests %v", limits)
	}
	if got := pod.Metadata.Annotations[networksKey]; got != strings.TrimSuffix(strings.Repeat("rail-net, ", 8), ", ") {
		t.Errorf("the pod names %s", got)
	}
	if out, _, _ := plainRun(append(args, "--one")...); !strings.Contains(out, "#   rdma/roce: 8\n") || strings.Count(out, "rail-net") != 8+2 {
		t.Errorf("the comment:\n%s", out)
	}
}

func TestGeneratedNetworkOfAllRailsNeedsAResource(t *testing.T) {
	for _, c := range []struct{ flags, text string }{
		{"--one", "--one needs --resource"},
		{"--one --resource rdma/roce --type macvlan", "a macvlan needs a network for each rail"},
		{"--same-host --resource rdma/roce", "add --one"},
	} {
		out, errOut, code := plainRun(append([]string{"generate", "nads", "--rails", "0-1", "--range", "10.{rail}.0.0/16"}, strings.Fields(c.flags)...)...)
		if code == 0 || out != "" || !strings.Contains(errOut, c.text) {
			t.Errorf("%s: exit code %d, %q, %q", c.flags, code, out, errOut)
		}
	}
	_, errOut, code := plainRun("generate", "nads", "--rails", "0-1", "--range", "10.0.{rail}.1-10.0.{rail}.99/16", "--one", "--same-host", "--resource", "rdma/roce")
	if code == 0 || !strings.Contains(errOut, "sameHost") {
		t.Errorf("rails in one network with --same-host: exit code %d, %q", code, errOut)
	}
}

func TestGeneratedNetworksSayWhatAPodNeeds(t *testing.T) {
	out, _, code := plainRun("generate", "nads", "--rails", "0,1", "--range", "172.31.{rail}.0/24", "--resource", "rdma/roce")
	if code != 0 || len(objectsOf(t, out)) != 2 {
		t.Fatalf("exit code %d:\n%s", code, out)
	}
	contains(t, "the comment", out, "#   k8s.v1.cni.cncf.io/networks: rail-net-0, rail-net-1\n", "#   rdma/roce_rail_0: 1\n", "#   rdma/roce_rail_1: 1\n")
	out, _, _ = plainRun("generate", "nads", "--rails", "0,1", "--range", "172.31.{rail}.0/24")
	contains(t, "the comment", out, "have no resource")
}

func TestGenerateRefusesWhatWouldNotWork(t *testing.T) {
	for _, c := range []struct{ rails, addresses, more, text string }{
		{"", "172.31.{rail}.0/24", "", "--rails"},
		{"0-", "172.31.{rail}.0/24", "", `"0-" is not a rail`},
		{"3-1", "172.31.{rail}.0/24", "", "ascending"},
		{"-1", "172.31.{rail}.0/24", "", "not a rail"},
		{"0-99999", "172.31.{rail}.0/24", "", "not a rail"},
		{"0-6000", "172.31.{rail}.0/24", "", "more than 64"},
		{"0,1,0-2", "172.31.{rail}.0/24", "", "rail 0 is listed twice"},
		{"0-7", "172.31.0.0/24", "", "rail 0 and rail 1 overlap"},
		{"0-1", "10.0.{rail}.0/16", "", "overlap"},
		{"0-1", "10.0.0.1-10.0.0.1{rail}/24", "", "overlap"},
		{"0-1", "172.31.{rial}.0/24", "", `"{rial}" is not a placeholder`},
		{"0-1", "172.31.{rail.0/24", "", "is not a placeholder"},
		{"300", "172.31.{rail}.0/24", "", "invalid CIDR"},
		{"0", "everything", "", "rail 0"},
		{"0-1", "172.31.{rail}.0/24", "--gateway=172.31.1.1", "the gateway 172.31.1.1 is not in 172.31.0.0/24"},
		{"0-1", "172.31.{rail}.0/24", "--type=ipvlan", "host-device or macvlan"},
		{"0-1", "172.31.{rail}.0/24", "--name=Roce_Net", "--name"},
		{"0-1", "172.31.{rail}.0/24", "--namespace=a b", "--namespace"},
		{"0-1", "172.31.{rail}.0/24", "--resource=roce", "PREFIX/NAME"},
		{"0-1", "172.31.{rail}.0/24", "--mtu=-1", "MTU"},
		{"0-1", "172.31.{rail}.0/24", "--rdma=perhaps", "perhaps"},
	} {
		args := []string{"generate", "nads", "--rails", c.rails, "--range", c.addresses}
		if c.more != "" {
			args = append(args, c.more)
		}
		out, errOut, code := plainRun(args...)
		if code != 1 || out != "" || !strings.Contains(errOut, c.text) {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q, want %q", args, code, out, errOut, c.text)
		}
	}
}

func TestLastAddressOfAPrefix(t *testing.T) {
	for addresses, want := range map[string]string{"10.0.0.0/22": "10.0.3.255", "10.0.0.7/32": "10.0.0.7", "fd00::/63": "fd00::1:ffff:ffff:ffff:ffff"} {
		g := railNetworks{kind: hostDeviceType, addresses: addresses, name: "n"}
		_, own, err := g.network(0)
		if err != nil || own.last.String() != want {
			t.Errorf("%s: %s, %v, want %s", addresses, own.last, err, want)
		}
	}
}

// Whatever is given, the output is YAML that has the networks of the rails, or an error.
func FuzzGenerateNetworks(f *testing.F) {
	f.Add("0-1", "172.31.{rail}.0/24", "rdma/roce", "net", "172.31.{rail}.1")
	f.Fuzz(func(t *testing.T, rails, addresses, resource, name, gateway string) {
		g := railNetworks{rails: rails, addresses: addresses, resource: resource, name: name, gateway: gateway, kind: hostDeviceType}
		text, err := g.manifest()
		if err != nil {
			return
		}
		for d := yaml.NewDecoder(bytes.NewReader([]byte(text))); ; {
			var o object
			err := d.Decode(&o)
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				t.Fatalf("%v:\n%s", err, text)
			}
			if _, err := netconf.ParseHostDevice([]byte(o.Spec.Config)); err != nil {
				t.Fatalf("%v:\n%s", err, text)
			}
		}
	})
}
