package nodefile

import (
	"slices"
	"strings"
	"testing"
)

func TestPublishOfTheNodeFile(t *testing.T) {
	n, err := Parse([]byte("fabric: isolated\npublish: {env: [nccl, vllm], mount: false, memlock: true, devices: none, annotation: true, gidIndex: fixed}"))
	if err != nil {
		t.Fatal(err)
	}
	p := n.Publish
	if n.Fabric != FabricIsolated || !slices.Equal(p.Env, []string{EnvNCCL, EnvVLLM}) || *p.Mount || !*p.Memlock || p.Devices != PublishNoDevices || !p.Annotation || p.GIDIndex != GIDIndexFixed {
		t.Errorf("got %q, %+v", n.Fabric, p)
	}
	n, err = Parse([]byte("publish: {env: []}"))
	if err != nil || n.Publish.Env == nil || len(n.Publish.Env) != 0 || n.Publish.Mount != nil || n.Publish.Memlock != nil {
		t.Errorf("got %+v, %v", n.Publish, err)
	}
}

func TestPublishThatCannotBeUnderstoodIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"fabric: isolatd":                 `fabric: "isolatd" is not one of isolated, routed, flat`,
		"fabric:":                         `"fabric" has no value`,
		"fabric: [flat]":                  "cannot unmarshal",
		"publish:":                        `"publish" has no value`,
		"publish: true":                   "expected a mapping",
		"publish: {enf: [nccl]}":          "env",
		"publish: {env: [ncl]}":           `publish.env[0]: "ncl" is not one of nccl, ucx, nvshmem, vllm`,
		"publish: {env: [ucx, ucx]}":      `publish.env[1]: "ucx" is there twice`,
		"publish: {env: nccl}":            "cannot unmarshal",
		"publish: {env: }":                `"env" has no value`,
		"publish: {mount: }":              `"mount" has no value`,
		"publish: {mount: maybe}":         "cannot unmarshal",
		"publish: {devices: all}":         `publish.devices: "all" is not one of lent, none`,
		"publish: {gidIndex: 3}":          `publish.gidIndex: "3" is not one of dynamic, fixed`,
		"publish: {annotation: sometime}": "cannot unmarshal",
		"publsh: {}":                      "publish",
	} {
		_, err := Parse([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}
