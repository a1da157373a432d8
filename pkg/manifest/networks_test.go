package manifest

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
	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
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

// networks returns networks with the defaults of the flags.
func networks(rails, addresses string, more ...func(*Networks)) *Networks {
	g := &Networks{Rails: rails, Range: addresses, Name: "rail-net", Type: HostDevice}
	for _, set := range more {
		set(g)
	}
	return g
}

// TestGeneratedNetworksAreReadByTheirPlugins: the plugins' own parsers must accept each printed
// network, and the pod must ask for all networks.
func TestGeneratedNetworksAreReadByTheirPlugins(t *testing.T) {
	for _, c := range []struct {
		networks   Networks
		rails      []int
		annotation string // of rail N
		limits     []string
		gateway    string
	}{
		{
			networks: Networks{
				Rails: "0-7", Range: "172.31.{rail}.0/24", Gateway: "172.31.{rail}.1", Resource: "rdma/roce",
				Name: "roce-net", Type: HostDevice, MTU: 9000, RDMA: "required",
			},
			rails: []int{0, 1, 2, 3, 4, 5, 6, 7}, annotation: "rdma/roce_rail_{rail}",
			limits: []string{
				"rdma/roce_rail_0", "rdma/roce_rail_1", "rdma/roce_rail_2", "rdma/roce_rail_3",
				"rdma/roce_rail_4", "rdma/roce_rail_5", "rdma/roce_rail_6", "rdma/roce_rail_7",
			},
			gateway: "172.31.%d.1",
		},
		{
			networks: Networks{Rails: "4,0", Range: "10.0.{rail}.16-10.0.{rail}.32/22", Name: "rail-net", Namespace: "train", Type: HostDevice},
			rails:    []int{0, 4},
		},
		{
			networks: Networks{Rails: "2", Range: "fd00:{rail}::/64", Name: "rail-net", Type: Macvlan, Resource: "rdma/hca"},
			rails:    []int{2}, annotation: "rdma/hca", limits: []string{"rdma/hca"},
		},
	} {
		t.Run(c.networks.Type+" "+c.networks.Rails, func(t *testing.T) {
			c.networks.Pod = true
			out, err := c.networks.YAML()
			if err != nil {
				t.Fatal(err)
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
				if c.networks.Type == Macvlan {
					_, err = netconf.ParseMacvlan([]byte(o.Spec.Config), netconf.Args{})
				} else {
					_, err = netconf.ParseHostDevice([]byte(o.Spec.Config))
				}
				addresses, ipamErr := ipamconf.ParseWhereabouts([]byte(o.Spec.Config), "", nil)
				if err := errors.Join(err, ipamErr); err != nil {
					t.Fatal(err)
				}
				if o.Kind != "NetworkAttachmentDefinition" || conf.Name != o.Metadata.Name || conf.Type != c.networks.Type || conf.Rail != rail ||
					!strings.HasSuffix(conf.Name, fmt.Sprintf("-%d", rail)) {
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
			if pod.Kind != "Pod" || pod.Metadata.Annotations[networksKey] != strings.Join(names, ", ") ||
				pod.Metadata.Namespace != objects[0].Metadata.Namespace {
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

// TestGeneratedNetworkOfAllRailsHasTheAddressesOfEach: one network for all rails must have the same
// addresses as separate networks for each rail. The pod must name it once for each device that it
// requests.
func TestGeneratedNetworkOfAllRailsHasTheAddressesOfEach(t *testing.T) {
	g := networks("0-7", "10.{rail}.0.0/16", func(g *Networks) { g.Gateway, g.Resource, g.MTU = "10.{rail}.0.1", "rdma/roce", 9000 })
	out, err := g.YAML()
	each := objectsOf(t, out)
	if err != nil || len(each) != 8 {
		t.Fatalf("%v:\n%s", err, out)
	}
	g.One, g.SameHost, g.Pod = true, true, true
	out, err = g.YAML()
	objects := objectsOf(t, out)
	if err != nil || len(objects) != 2 {
		t.Fatalf("%v:\n%s", err, out)
	}
	nad, pod := objects[0], objects[1]
	conf, err := netconf.ParseHostDevice([]byte(nad.Spec.Config))
	if err != nil || !conf.Rail.Auto || conf.MTU != 9000 || nad.Metadata.Annotations[resourceKey] != "rdma/roce" {
		t.Fatalf("%v: %s", err, out)
	}
	rails := []int{0, 1, 2, 3, 4, 5, 6, 7}
	for _, rail := range rails {
		expanded, err := conf.Expanded(ipamconf.Variables{Rail: &rail, Rails: rails})
		if err != nil {
			t.Fatal(err)
		}
		got, err := ipamconf.ParseWhereabouts(expanded, "", nil)
		want, wantErr := ipamconf.ParseWhereabouts([]byte(each[rail].Spec.Config), "", nil)
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
	g.SameHost, g.Pod = false, false
	if out, _ := g.YAML(); !strings.Contains(out, "#   rdma/roce: 8\n") || strings.Count(out, "rail-net") != 8+2 {
		t.Errorf("the comment:\n%s", out)
	}
}

func TestGeneratedNetworkOfAllRailsNeedsAResource(t *testing.T) {
	for _, c := range []struct {
		set  func(*Networks)
		text string
	}{
		{func(g *Networks) { g.One = true }, "--one needs --resource"},
		{func(g *Networks) { g.One, g.Resource, g.Type = true, "rdma/roce", Macvlan }, "a macvlan needs a network for each rail"},
		{func(g *Networks) { g.SameHost, g.Resource = true, "rdma/roce" }, "add --one"},
	} {
		if out, err := networks("0-1", "10.{rail}.0.0/16", c.set).YAML(); err == nil || out != "" || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%q, %v, want %q", out, err, c.text)
		}
	}
	g := networks("0-1", "10.0.{rail}.1-10.0.{rail}.99/16", func(g *Networks) { g.One, g.SameHost, g.Resource = true, true, "rdma/roce" })
	if _, err := g.YAML(); err == nil || !strings.Contains(err.Error(), "sameHost") {
		t.Errorf("rails in one network with one host part: %v", err)
	}
}

func TestGeneratedNetworksSayWhatAPodNeeds(t *testing.T) {
	g := networks("0,1", "172.31.{rail}.0/24", func(g *Networks) { g.Resource = "rdma/roce" })
	out, err := g.YAML()
	if err != nil || len(objectsOf(t, out)) != 2 {
		t.Fatalf("%v:\n%s", err, out)
	}
	for _, want := range []string{"#   k8s.v1.cni.cncf.io/networks: rail-net-0, rail-net-1\n", "#   rdma/roce_rail_0: 1\n", "#   rdma/roce_rail_1: 1\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("the comment lacks %q:\n%s", want, out)
		}
	}
	g.Resource = ""
	if out, _ := g.YAML(); !strings.Contains(out, "have no resource") {
		t.Errorf("the comment:\n%s", out)
	}
}

func TestNetworksThatWouldNotWorkAreRefused(t *testing.T) {
	for _, c := range []struct {
		rails, addresses, text string
		set                    func(*Networks)
	}{
		{"", "172.31.{rail}.0/24", "--rails", nil},
		{"0-", "172.31.{rail}.0/24", `"0-" is not a rail`, nil},
		{"3-1", "172.31.{rail}.0/24", "ascending", nil},
		{"-1", "172.31.{rail}.0/24", "not a rail", nil},
		{"0-99999", "172.31.{rail}.0/24", "not a rail", nil},
		{"0-6000", "172.31.{rail}.0/24", "more than 64", nil},
		{"0,1,0-2", "172.31.{rail}.0/24", "rail 0 is listed twice", nil},
		{"0-7", "172.31.0.0/24", "rail 0 and rail 1 overlap", nil},
		{"0-1", "10.0.{rail}.0/16", "overlap", nil},
		{"0-1", "10.0.0.1-10.0.0.1{rail}/24", "overlap", nil},
		{"0-1", "172.31.{rial}.0/24", `"{rial}" is not a placeholder`, nil},
		{"0-1", "172.31.{rail.0/24", "is not a placeholder", nil},
		{"300", "172.31.{rail}.0/24", "invalid CIDR", nil},
		{"0", "everything", "rail 0", nil},
		{"0-1", "172.31.{rail}.0/24", "the gateway 172.31.1.1 is not in 172.31.0.0/24", func(g *Networks) { g.Gateway = "172.31.1.1" }},
		{"0-1", "172.31.{rail}.0/24", "host-device or macvlan", func(g *Networks) { g.Type = "ipvlan" }},
		{"0-1", "172.31.{rail}.0/24", "--name", func(g *Networks) { g.Name = "Roce_Net" }},
		{"0-1", "172.31.{rail}.0/24", "--namespace", func(g *Networks) { g.Namespace = "a b" }},
		{"0-1", "172.31.{rail}.0/24", "PREFIX/NAME", func(g *Networks) { g.Resource = "roce" }},
		{"0-1", "172.31.{rail}.0/24", "MTU", func(g *Networks) { g.MTU = -1 }},
		{"0-1", "172.31.{rail}.0/24", "perhaps", func(g *Networks) { g.RDMA = "perhaps" }},
	} {
		var more []func(*Networks)
		if c.set != nil {
			more = append(more, c.set)
		}
		g := networks(c.rails, c.addresses, more...)
		if out, err := g.YAML(); err == nil || out != "" || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: %q, %v, want %q", g, out, err, c.text)
		}
	}
}

// FuzzGenerateNetworks: for any flags, the result must be either YAML with the networks of the
// rails, or an error.
func FuzzGenerateNetworks(f *testing.F) {
	f.Add("0-1", "172.31.{rail}.0/24", "rdma/roce", "net", "172.31.{rail}.1")
	f.Fuzz(func(t *testing.T, rails, addresses, resource, name, gateway string) {
		g := Networks{Rails: rails, Range: addresses, Resource: resource, Name: name, Gateway: gateway, Type: HostDevice}
		text, err := g.YAML()
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
