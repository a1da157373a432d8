package railinfo

import (
	"reflect"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

func TestSettingsOfANodeFile(t *testing.T) {
	defaults := Settings{Env: []Family{NCCL, UCX, NVSHMEM}, Mount: true, Memlock: true, Devices: true}
	for text, change := range map[string]func(*Settings){
		"fabric: flat":                       func(*Settings) {},
		"fabric: isolated":                   func(s *Settings) { s.Isolated = true },
		"publish: {}":                        func(*Settings) {},
		"publish: {env: []}":                 func(s *Settings) { s.Env = []Family{} },
		"publish: {env: [vllm, nccl]}":       func(s *Settings) { s.Env = []Family{VLLM, NCCL} },
		"publish: {mount: false}":            func(s *Settings) { s.Mount = false },
		"publish: {memlock: false}":          func(s *Settings) { s.Memlock = false },
		"publish: {devices: none}":           func(s *Settings) { s.Devices = false },
		"publish: {devices: lent}":           func(*Settings) {},
		"publish: {annotation: true}":        func(s *Settings) { s.Annotation = true },
		"publish: {gidIndex: fixed}":         func(s *Settings) { s.FixedGIDIndex = true },
		"publish: {gidIndex: dynamic}":       func(*Settings) {},
		"publish: {mount: true, env: [ucx]}": func(s *Settings) { s.Env = []Family{UCX} },
	} {
		file, err := nodefile.Parse([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		want := defaults
		change(&want)
		if got := SettingsOf(file); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", text, got, want)
		}
	}
	if got := SettingsOf(nil); !reflect.DeepEqual(got, defaults) {
		t.Errorf("without a node file: %+v", got)
	}
}

func TestPodChoosesItsSettings(t *testing.T) {
	node := Settings{Env: []Family{NCCL}, Mount: true, Memlock: true, Devices: true, Annotation: true, Isolated: true}
	for annotation, want := range map[string]Settings{
		"":                 node,
		" none ":           {Annotation: true, Isolated: true},
		"ucx, nvshmem":     {Env: []Family{UCX, NVSHMEM}, Mount: true, Memlock: true, Devices: true, Annotation: true, Isolated: true},
		"nccl":             node,
		"vllm,nccl,ucx":    {Env: []Family{VLLM, NCCL, UCX}, Mount: true, Memlock: true, Devices: true, Annotation: true, Isolated: true},
		"nccl\n":           node,
		"\tnone":           {Annotation: true, Isolated: true},
		"nvshmem ,  ucx  ": {Env: []Family{NVSHMEM, UCX}, Mount: true, Memlock: true, Devices: true, Annotation: true, Isolated: true},
	} {
		if got, err := node.For(annotation); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %+v, %v; want %+v", annotation, got, err, want)
		}
	}
	for _, bad := range []string{"ncl", "nccl,", "none,nccl", ","} {
		got, err := node.For(bad)
		if err == nil || !strings.Contains(err.Error(), PublishAnnotation) || !reflect.DeepEqual(got, node) {
			t.Errorf("%q: got %+v, %v", bad, got, err)
		}
	}
}
