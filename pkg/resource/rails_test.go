package resource

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func TestRailsOfAListBySelector(t *testing.T) {
	nics := server()
	nics = append(nics, NIC{Names: []string{"rxe0"}, RDMA: []string{"rxe0"}}, NIC{PCI: "0000:e0:00.0", ACPIIndex: 7}, NIC{PCI: "0000:e0:00.1", ACPIIndex: 7})
	for name, c := range map[string]struct {
		text     string
		want     map[string]int
		problems []string // reason and a part of the message
	}{
		"PCI, in any case":  {`[{id: 3, pci: "0000:1C:00.0"}]`, map[string]int{"0000:1c:00.0": 3}, nil},
		"a name":            {`[{id: 0, name: ens11np0}]`, map[string]int{"0000:2c:00.0": 0}, nil},
		"an altname":        {`[{id: 255, name: rail1}]`, map[string]int{"0000:2c:00.0": 255}, nil},
		"MAC, in any case":  {`[{id: 1, mac: B8-CE-F6-00-00-02}]`, map[string]int{"0000:3c:00.0": 1}, nil},
		"ACPI index":        {`[{id: 1, acpiIndex: 101}]`, map[string]int{"0000:05:00.0": 1}, nil},
		"RDMA":              {`[{id: 1, rdma: mlx5_7}]`, map[string]int{"0000:8c:00.0": 1}, nil},
		"none":              {`[]`, map[string]int{}, nil},
		"nothing":           {`[{id: 0, name: ens9}, {id: 1, name: rail1}]`, map[string]int{"0000:2c:00.0": 1}, []string{`NothingSelected rail 0 ({name: "ens9"})`}},
		"several":           {`[{id: 0, acpiIndex: 7}]`, map[string]int{}, []string{"Ambiguous 0000:e0:00.0 0000:e0:00.1"}},
		"two of one NIC":    {`[{id: 0, name: rail1}, {id: 1, rdma: mlx5_1}, {id: 2, pci: "0000:2c:00.0"}]`, map[string]int{}, []string{"Overlap rails 0 and 1", "Overlap rails 0 and 2"}},
		"no PCI function":   {`[{id: 0, rdma: rxe0}]`, map[string]int{}, []string{`NoPCI rdma: "rxe0"`}},
		"a merged mapping":  {"- &a {id: 0, name: rail1}\n- {<<: *a, id: 1, name: rail2}", map[string]int{"0000:2c:00.0": 0, "0000:3c:00.0": 1}, nil},
		"a name in quotes ": {`[{id: 0, name: "rail1"}]`, map[string]int{"0000:2c:00.0": 0}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var r Rails
			if err := yaml.Unmarshal([]byte(c.text), &r); err != nil {
				t.Fatal(err)
			}
			got, problems := r.Assign(nics)
			if !maps.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
			if len(problems) != len(c.problems) {
				t.Fatalf("problems %+v, want %v", problems, c.problems)
			}
			for i, want := range c.problems {
				reason, part, _ := strings.Cut(want, " ")
				if problems[i].Reason != reason || !strings.Contains(problems[i].Message, part) {
					t.Errorf("%+v, want %s", problems[i], want)
				}
			}
		})
	}
}

func TestRailsInPCIOrder(t *testing.T) {
	for name, c := range map[string]struct {
		text, want string // rails' PCI addresses, in order
	}{
		"NICs with RDMA":    {"auto: pciOrder", "0000:1c:00.0 0000:2c:00.0 0000:3c:00.0 0000:4c:00.0 0000:5c:00.0 0000:6c:00.0 0000:7c:00.0 0000:8c:00.0 10000:01:00.0"},
		"a device":          {`{auto: pciOrder, select: {vendors: ["15B3"], devices: ["1021"]}}`, "0000:1c:00.0 0000:2c:00.0 0000:3c:00.0 0000:4c:00.0 0000:5c:00.0 0000:6c:00.0 0000:7c:00.0 0000:8c:00.0"},
		"no RDMA":           {`{auto: pciOrder, select: {rdma: false}}`, "0000:05:00.0"},
		"a driver":          {`{auto: pciOrder, select: {drivers: [i40e, nosuch]}}`, "0000:05:00.0"},
		"virtual functions": {`{auto: pciOrder, select: {devices: [101e]}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var r Rails
			if err := yaml.Unmarshal([]byte(c.text), &r); err != nil {
				t.Fatal(err)
			}
			nics := append(server(), NIC{PCI: "10000:01:00.0", CharDevices: []string{"/dev/infiniband/uverbs9"}}, NIC{CharDevices: []string{"/dev/infiniband/uverbs8"}})
			got, problems := r.Assign(nics)
			want := strings.Fields(c.want)
			if len(got) != len(want) || (len(problems) > 0) != (len(want) == 0) {
				t.Errorf("%v, %v, want %v", got, problems, want)
			}
			for rail, pci := range want {
				if got[pci] != rail {
					t.Errorf("%s is rail %d, want %d", pci, got[pci], rail)
				}
			}
		})
	}
}

// A NIC in a pod has no netdev and no RDMA device on the host.
func TestNumbersStayWhenANICIsLent(t *testing.T) {
	r := &Rails{Auto: true}
	nics := server()
	before, _ := r.Assign(nics)
	for i := range nics {
		nics[i].Names, nics[i].RDMA, nics[i].MAC, nics[i].LinkType = nil, nil, "", ""
		after, _ := r.Assign(nics)
		if !maps.Equal(before, after) {
			t.Fatalf("%s: %v became %v", nics[i].PCI, before, after)
		}
	}
}

func TestWithoutRailsNoNICHasOne(t *testing.T) {
	var r *Rails
	if got, problems := r.Assign(server()); len(got) != 0 || problems != nil {
		t.Error(got, problems)
	}
}

func TestMoreNICsThanRails(t *testing.T) {
	var nics []NIC
	for i := range MaxRail + 3 {
		nics = append(nics, NIC{PCI: strings.Repeat("0", 4) + ":" + string("0123456789abcdef"[i/16%16]) + string("0123456789abcdef"[i%16]) + ":00." + string("01"[i/256]), CharDevices: []string{"x"}})
	}
	got, problems := (&Rails{Auto: true}).Assign(nics)
	if len(got) != MaxRail+1 || len(problems) != 1 || problems[0].Reason != Ambiguous {
		t.Errorf("%d rails, %v", len(got), problems)
	}
}

func TestRailsWithMistakes(t *testing.T) {
	for text, want := range map[string]string{
		`[{id: 0}]`: "needs one of pci, name, mac, acpiIndex and rdma, but has 0",
		`[{id: 0, pci: "0000:0c:00.0", name: a}]`:       "has 2 of them",
		`[{pci: "0000:0c:00.0"}]`:                       "needs an id from 0 to 255",
		`[{id: 256, name: a}]`:                          "needs an id from 0 to 255",
		`[{id: -1, name: a}]`:                           "needs an id from 0 to 255",
		`[{id: x, name: a}]`:                            "cannot unmarshal",
		`[{id: 0, pci: "0c:00.0"}]`:                     `"0c:00.0" is not a PCI address with its domain`,
		`[{id: 0, pci: "0000:0c:20.0"}]`:                "is not a PCI address",
		`[{id: 0, pci: "0000:0c:00.8"}]`:                "is not a PCI address",
		`[{id: 0, pci: ""}]`:                            "its selector is empty",
		`[{id: 0, name: ""}]`:                           "its selector is empty",
		`[{id: 0, acpiIndex: -5}]`:                      "its selector is empty",
		`[{id: 0, mac: nonsense}]`:                      "is not a MAC address",
		`[{id: 0, name: a}, {id: 0, name: b}]`:          "two entries of rails have the id 0",
		`[{id: 0, name: a}, {id: 1, name: a}]`:          "rails 0 and 1 are the same NIC",
		`[{id: 0, ifName: a}]`:                          `field ifName not found; did you mean "name"?`,
		`[~]`:                                           "an entry has no value",
		`[3]`:                                           "expected a mapping with the keys id, pci",
		`all`:                                           `"rails" must be a list of {id, pci}, or {auto: pciOrder}`,
		`{auto: pciorder}`:                              `rails.auto is "pciorder", not "pciOrder"`,
		`{auot: pciOrder}`:                              `field auot not found; did you mean "auto"?`,
		`{auto: pciOrder, select: {ifNames: [a]}}`:      "rails.select: line 1: field ifNames not found",
		`{auto: pciOrder, select: {linkType: [a]}}`:     "field linkType not found",
		`{auto: pciOrder, select: {}}`:                  "rails.select: it is empty",
		`{auto: pciOrder, select: {vendors: [0x15b3]}}`: "is not four hexadecimal digits",
		`{select: {rdma: true}}`:                        `rails.auto is ""`,
	} {
		var r Rails
		if err := yaml.Unmarshal([]byte(text), &r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestWrittenRailsAreReadAgain(t *testing.T) {
	yes := true
	for _, r := range []Rails{
		{List: []Rail{}},
		{List: []Rail{{ID: 0, PCI: "0000:0c:00.0"}, {ID: 1, Name: "a: \"b\"#{"}, {ID: 2, MAC: "b8:ce:f6:00:00:01"}, {ID: 3, ACPIIndex: 9}, {ID: 4, RDMA: "mlx5_0"}}},
		{Auto: true},
		{Auto: true, Select: &Select{Vendors: []string{"15b3", "1e99"}, Devices: []string{"1021"}, RDMA: &yes}},
	} {
		text := r.YAML()
		var back struct {
			Rails *Rails `yaml:"rails"`
		}
		if err := yaml.Unmarshal([]byte(text), &back); err != nil || back.Rails == nil || !reflect.DeepEqual(*back.Rails, r) {
			t.Errorf("%s\nis read as %+v, want %+v; %v", text, back.Rails, r, err)
		}
	}
	noted := Rails{List: []Rail{{PCI: "0000:0c:00.0", Note: "ens12np0\n- {id: 1}"}}}
	if text, want := noted.YAML(), "rails:\n- {id: 0, pci: \"0000:0c:00.0\"}  # ens12np0 - {id: 1}\n"; text != want {
		t.Errorf("%q, want %q", text, want)
	}
	if (*Rails)(nil).YAML() != "" {
		t.Error("no rails are written")
	}
}

// FuzzRails looks for accepted rails that are ambiguous, or that change when they are
// written and read.
func FuzzRails(f *testing.F) {
	for _, seed := range []string{
		`[{id: 0, pci: "0000:0c:00.0"}, {id: 1, name: ens11np0}]`, "auto: pciOrder", `{auto: pciOrder, select: {vendors: ["15b3"], rdma: true}}`, "- &a {id: 0, name: x}\n- {<<: *a, id: 1, mac: \"02:00:00:00:00:01\"}",
		"&a [*a]", "{<<: &b {<<: *b}}", "[{id: 0, rdma: \"\\0\"}]", "[{id: 0x10, acpiIndex: 1}]",
	} {
		f.Add([]byte(seed))
	}
	nics := server()
	f.Fuzz(func(t *testing.T, data []byte) {
		var r Rails
		if yaml.Unmarshal(data, &r) != nil {
			return
		}
		byPCI, _ := r.Assign(nics)
		seen := slices.Sorted(maps.Values(byPCI))
		if len(slices.Compact(seen)) != len(byPCI) {
			t.Errorf("%q gives one rail to two NICs: %v", data, byPCI)
		}
		if !r.Auto && r.List == nil {
			return // null
		}
		var back struct {
			Rails *Rails `yaml:"rails"`
		}
		if err := yaml.Unmarshal([]byte(r.YAML()), &back); err != nil {
			t.Fatalf("%q is written as %q: %v", data, r.YAML(), err)
		}
		if again, _ := back.Rails.Assign(nics); !maps.Equal(again, byPCI) {
			t.Errorf("%q is written as %q: %v became %v", data, r.YAML(), byPCI, again)
		}
	})
}
