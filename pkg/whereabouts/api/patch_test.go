package api

import (
	"encoding/json"
	"testing"
)

func TestPatchTestsEachEntryOnceBeforeItChangesIt(t *testing.T) {
	const tested = `{"op":"test","path":"/spec/allocations/1/id","value":"c"},{"op":"test","path":"/spec/allocations/1/podref","value":"ns/pod"}`
	const ifname = `,{"op":"test","path":"/spec/allocations/1/ifname","value":"net1"}`
	old := Entry{ContainerID: "c", PodRef: "ns/pod"}
	whole := Entry{ContainerID: "c", PodRef: "ns/pod", IfName: "net1"}
	for name, tc := range map[string]struct {
		make     func(p *PoolPatch)
		want     string
		onlyAdds bool
	}{
		"add": {
			func(p *PoolPatch) { p.Add("1", whole) },
			`[{"op":"test","path":"/spec/allocations/1","value":null},{"op":"add","path":"/spec/allocations/1","value":{"id":"c","podref":"ns/pod","ifname":"net1"}}]`, true,
		},
		"remove":       {func(p *PoolPatch) { p.Remove("1", whole) }, `[` + tested + ifname + `,{"op":"remove","path":"/spec/allocations/1"}]`, false},
		"remove twice": {func(p *PoolPatch) { p.Remove("1", old); p.Remove("1", old) }, `[` + tested + `,{"op":"remove","path":"/spec/allocations/1"}]`, false},
		"replace": {
			func(p *PoolPatch) { p.Replace("1", old, whole) },
			`[` + tested + `,{"op":"replace","path":"/spec/allocations/1","value":{"id":"c","podref":"ns/pod","ifname":"net1"}}]`, false,
		},
		"replace, then remove": {
			func(p *PoolPatch) { p.Replace("1", old, whole); p.Remove("1", old) },
			`[` + tested + `,{"op":"replace","path":"/spec/allocations/1","value":{"id":"c","podref":"ns/pod","ifname":"net1"}}]`, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := new(PoolPatch)
			tc.make(p)
			if got := ordered(t, string(encode(t, p.Ops))); got != ordered(t, tc.want) {
				t.Errorf("got  %s\nwant %s", got, ordered(t, tc.want))
			}
			if p.OnlyAdds() != tc.onlyAdds || p.Tests("1") == tc.onlyAdds {
				t.Errorf("OnlyAdds %v, Tests %v", p.OnlyAdds(), p.Tests("1"))
			}
		})
	}
}

// ordered returns the JSON of a patch with its keys in a fixed order.
func ordered(t *testing.T, text string) string {
	t.Helper()
	var ops []map[string]any
	if err := json.Unmarshal([]byte(text), &ops); err != nil {
		t.Fatal(err)
	}
	return string(encode(t, ops))
}
