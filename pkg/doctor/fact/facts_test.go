package fact

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestForeignDocumentsAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		``:                                  "EOF",
		`{`:                                 "unexpected EOF",
		"{\n\n\"node\":":                    "collect them again",
		`[]`:                                "cannot unmarshal",
		`{"schema":"rail-cni.io/facts/v1"}`: "has none",
		`{"schema":"rail-cni.io/facts/v2"}`: `not "rail-cni.io/facts/v1"`,
		`{"schema":"` + Schema + `","nics":{"list":{"value":"ens1"}}}`: "cannot unmarshal",
	} {
		if _, err := Decode(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestDocumentOfAClusterHasItsNADsOnce: each node is judged with all NADs of the cluster, and a
// cluster may have as many NADs as nodes. So each NAD must be in the document only once.
func TestDocumentOfAClusterHasItsNADsOnce(t *testing.T) {
	const nodes = 100
	nad := Config{Kind: NADConfig, Name: "default/a", Text: strings.Repeat("x", 100_000)}
	own := Known([]Config{{Kind: NADConfig, Name: "default/b"}}, "file")
	f := &Facts{Schema: Schema, Cluster: &Cluster{NADs: Known([]Config{nad}, "api"), Networks: Known(map[string][]string{"pods": {"10.0.0.0/8"}}, "api")}}
	for i := range nodes {
		n := &Facts{Node: fmt.Sprint("node-", i), Configs: &Configs{Files: Known([]Config{}, "test"), NADs: f.Cluster.NADs, Networks: f.Cluster.Networks}}
		f.Cluster.Nodes = append(f.Cluster.Nodes, n)
	}
	f.Cluster.Nodes[7].Configs.NADs = own
	f.Cluster.Nodes = append(f.Cluster.Nodes, nil)
	text, err := json.MarshalIndent(f, "", "  ")
	if err != nil || len(text) > 300_000 {
		t.Fatalf("%d bytes, %v", len(text), err)
	}
	back, err := Decode(bytes.NewReader(text))
	if err != nil || !reflect.DeepEqual(back, f) {
		t.Errorf("it is not as it was: %v", err)
	}
	if !f.Cluster.Nodes[0].Configs.NADs.OK() {
		t.Error("it changed the facts")
	}
}

func TestDocumentsOfFactsAreBounded(t *testing.T) {
	f := &Facts{Schema: Schema, Version: strings.Repeat("x", 65<<20)}
	read := func() error {
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Decode(bytes.NewReader(text))
		return err
	}
	if err := read(); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("of a node: %v", err)
	}
	f.Cluster = &Cluster{}
	if err := read(); err != nil {
		t.Errorf("of a cluster: %v", err)
	}
}
