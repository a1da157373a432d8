package pods

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// manifest has the fields of a Job that the tests read.
type manifest struct {
	Kind     string
	Metadata struct {
		Name   string
		Labels map[string]string
	}
	Spec struct {
		BackoffLimit, ActiveDeadlineSeconds, TTLSecondsAfterFinished *int
		Template                                                     struct {
			Metadata struct {
				Labels, Annotations map[string]string
			}
			Spec struct {
				RestartPolicy                 string
				TerminationGracePeriodSeconds int
				AutomountServiceAccountToken  *bool
				HostNetwork, HostPID          bool
				Affinity                      json.RawMessage
				Containers                    []struct {
					Image            string
					Command          []string
					Stdin, StdinOnce bool
					Resources        struct{ Requests, Limits map[string]string }
					SecurityContext  struct {
						Privileged, AllowPrivilegeEscalation *bool
						ReadOnlyRootFilesystem               bool
						Capabilities                         struct{ Add, Drop []string }
					}
				}
			}
		}
	}
}

func TestJobOfANode(t *testing.T) {
	o := &Options{Namespace: "ml", Within: time.Minute, Deadline: 90500 * time.Millisecond, Networks: []Network{
		{Namespace: "ml", Name: "rail-0", Config: "r0", Resource: "rdma/hca_gpu"},
		{Namespace: "net", Name: "rail-1", Config: "r1"},
		{Namespace: "ml", Name: "rail-2", Config: "r2", Resource: "rdma/hca_gpu"},
		{Namespace: "ml", Name: "rail-3", Config: "r3", Resource: "rdma/hca_gpu"},
	}}
	m := &member{node: `gpu"-1`, index: 12, try: 1, nonce: [4]byte{0xab, 1, 2, 3}, image: "registry/rail-cni:v1", missing: map[int]string{2: "in use"}, broken: map[int]string{}}
	made, err := m.job(o, "01234567")
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(made)
	if err != nil {
		t.Fatal(err)
	}
	var j manifest
	if err := json.Unmarshal(text, &j); err != nil {
		t.Fatal(err)
	}
	pod := &j.Spec.Template.Spec
	c := &pod.Containers[0]
	for what, ok := range map[string]bool{
		"name":       j.Kind == "Job" && j.Metadata.Name == "rail-verify-01234567-12-1-ab010203",
		"labels":     j.Metadata.Labels[runLabel] == "01234567" && j.Spec.Template.Metadata.Labels[runLabel] == "01234567" && j.Spec.Template.Metadata.Labels[nodeLabel] == "12-1",
		"bounds":     *j.Spec.BackoffLimit == 0 && *j.Spec.ActiveDeadlineSeconds == 91 && *j.Spec.TTLSecondsAfterFinished == 15,
		"life":       pod.RestartPolicy == "Never" && pod.TerminationGracePeriodSeconds == 2 && c.Stdin && c.StdinOnce,
		"node":       strings.Contains(string(pod.Affinity), `{"key":"metadata.name","operator":"In","values":["gpu\"-1"]}`),
		"image":      c.Image == "registry/rail-cni:v1" && slices.Equal(c.Command, []string{"/railctl", "verify", "probe", "--idle", "1m30s"}),
		"devices":    c.Resources.Limits["rdma/hca_gpu"] == "2" && c.Resources.Requests["rdma/hca_gpu"] == "2",
		"privileges": c.SecurityContext.Privileged == nil && !*c.SecurityContext.AllowPrivilegeEscalation && c.SecurityContext.ReadOnlyRootFilesystem && slices.Equal(c.SecurityContext.Capabilities.Drop, []string{"ALL"}) && slices.Equal(c.SecurityContext.Capabilities.Add, []string{"NET_RAW"}),
		"host":       !pod.HostNetwork && !pod.HostPID && !*pod.AutomountServiceAccountToken,
	} {
		if !ok {
			t.Errorf("%s: %s", what, text)
		}
	}
	const want = `[{"interface":"net1","name":"rail-0","namespace":"ml"},{"interface":"net2","name":"rail-1","namespace":"net"},{"interface":"net4","name":"rail-3","namespace":"ml"}]`
	if have := j.Spec.Template.Metadata.Annotations["k8s.v1.cni.cncf.io/networks"]; have != want {
		t.Errorf("networks %s\nnot %s", have, want)
	}
	o.Image = "mine:1"
	if made, _ := m.job(o, "0"); !strings.Contains(string(must(t, made)), `"image":"mine:1"`) {
		t.Error("--image is not used")
	}
}

func TestProberIsBroughtIntoTheImageWithPerftest(t *testing.T) {
	o := &Options{Deadline: time.Minute, RDMAImage: "mine/perftest:1", Networks: []Network{{Namespace: "ml", Name: "rail-0", Resource: "rdma/hca_gpu"}}}
	m := &member{node: "n", image: "registry/rail-cni:v1"}
	made, err := m.job(o, "0")
	if err != nil {
		t.Fatal(err)
	}
	var j struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers, InitContainers []struct {
						Image           string
						Command         []string
						StdinOnce       bool
						VolumeMounts    []struct{ MountPath string }
						Resources       struct{ Limits map[string]string }
						SecurityContext struct {
							Capabilities struct{ Add, Drop []string }
						}
					}
					Volumes []struct{ EmptyDir *struct{} }
				}
			}
		}
	}
	if err := json.Unmarshal(must(t, made), &j); err != nil {
		t.Fatal(err)
	}
	pod := &j.Spec.Template.Spec
	bring, c := &pod.InitContainers[0], &pod.Containers[0]
	if bring.Image != "registry/rail-cni:v1" || !slices.Equal(bring.Command, []string{"/railctl", "verify", "copy", "/rail-cni-verify/railctl"}) || len(bring.SecurityContext.Capabilities.Add) > 0 {
		t.Errorf("%+v", bring)
	}
	if c.Image != "mine/perftest:1" || c.Command[0] != "/rail-cni-verify/railctl" || !c.StdinOnce || c.Resources.Limits["rdma/hca_gpu"] != "1" || c.Resources.Limits["memory"] != "2Gi" ||
		!slices.Equal(c.SecurityContext.Capabilities.Add, []string{"NET_RAW", "IPC_LOCK"}) || !slices.Equal(c.SecurityContext.Capabilities.Drop, []string{"ALL"}) {
		t.Errorf("%+v", c)
	}
	if bring.VolumeMounts[0] != c.VolumeMounts[0] || c.VolumeMounts[0].MountPath != "/rail-cni-verify" || pod.Volumes[0].EmptyDir == nil {
		t.Errorf("%+v", pod)
	}
}

func must(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestNetworkIsReadAsMultusReadsIt(t *testing.T) {
	nad := func(name, config string) []byte {
		return must(t, map[string]any{
			"metadata": map[string]any{"namespace": "ml", "name": name, "annotations": map[string]any{resourceKey: "rdma/hca"}},
			"spec":     map[string]any{"config": config},
		})
	}
	for config, want := range map[string]Network{
		`{"name": "r0", "type": "host-device"}`: {Config: "r0", kind: "host-device"},
		`{"type": "macvlan"}`:                   {Config: "rail-0", kind: "macvlan"},
		`{"name": "r1", "plugins": [{"type": "host-device"}, {"type": "rdma"}]}`: {Config: "r1", kind: "host-device"},
		``: {Config: "rail-0"},
	} {
		want.Namespace, want.Name, want.Resource = "ml", "rail-0", "rdma/hca"
		if n, err := readNetwork(nad("rail-0", config)); err != nil || n != want {
			t.Errorf("%s: %+v, %v", config, n, err)
		}
	}
	for _, config := range []string{"{", `[]`, `{"name": 3}`, strings.Repeat(" ", maxConfig+1)} {
		if n, err := readNetwork(nad("rail-0", config)); err == nil || !strings.Contains(err.Error(), "ml/rail-0") {
			t.Errorf("%.40s: %+v, %v", config, n, err)
		}
	}
}

func TestNamesAreInTheOrderOfTheirNumbers(t *testing.T) {
	want := []string{"rail", "rail-0", "rail-1", "rail-1b", "rail-02", "rail-9", "rail-10", "rail-99999999999999999999", "rail-100000000000000000000", "x2-1", "x10-0"}
	have := slices.Clone(want)
	slices.Reverse(have)
	slices.SortFunc(have, naturally)
	if !slices.Equal(have, want) {
		t.Errorf("%q", have)
	}
}

const sandbox = `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "5d88": plugin type="multus" name="multus-cni-network" failed (add): ` +
	`[ml/rail-verify-00000001-0-0-x/1dbf:r2]: error adding container to network "r2": `

func TestEventsNameTheRailThatAPodCannotHave(t *testing.T) {
	f := &Fleet{run: "00000001", Options: Options{Namespace: "ml", Networks: []Network{{Name: "a", Config: "r1"}, {Namespace: "ml", Name: "b", Config: "r2"}, {Name: "c", Config: "r3"}, {Name: "d", Config: "r3"}}}}
	lent := func(holder string) string {
		return sandbox + "ens2 (0000:41:00.0) is lent to " + holder + " since 2026-11-26T12:00:00Z (lent); wait until that attachment ends, or choose another NIC"
	}
	for _, c := range []struct {
		name, message string
		count         int
		want          *left
	}{
		{"lent", lent("pod ml/trainer-0 (container 0a1b, interface net3)"), 1, &left{1, "in use by pod ml/trainer-0", false}},
		{"lent to nobody's pod", lent("container 0a1b, interface net3"), 1, &left{1, "in use by container 0a1b", false}},
		{"lent to the try before", lent("pod ml/rail-verify-00000001-0-0-y (container 0a1b, interface net3)"), 5, nil},
		{"lent to another run", lent("pod ml/rail-verify-00000002-0-0-y (container 0a1b, interface net3)"), 1, &left{1, "in use by pod ml/rail-verify-00000002-0-0-y", false}},
		{"an error of the moment", sandbox + "no address is free", 1, nil},
		{"an error that stays", sandbox + "no address is free", 2, &left{1, "its network ml/b cannot be attached: no address is free", true}},
		{"two networks of a name", strings.ReplaceAll(sandbox, "r2", "r3") + "no address is free", 2, nil},
		{"another error", "Failed to pull image", 9, nil},
		{"an endless error", sandbox + strings.Repeat("x", 1<<20), 2, &left{1, "its network ml/b cannot be attached: " + strings.Repeat("x", maxReason) + " …", true}},
	} {
		have := f.blamed(&state{member: &member{}}, c.message, c.count)
		if (have == nil) != (c.want == nil) || have != nil && *have != *c.want {
			t.Errorf("%s: %.200v", c.name, have)
		}
	}
	if f.blamed(&state{member: &member{missing: map[int]string{1: "in use"}}}, lent("pod ml/x "), 1) != nil {
		t.Error("a rail that was left out is blamed")
	}
}

func TestJobsOfDeadRunsAreKnown(t *testing.T) {
	now := time.Now()
	for text, want := range map[string]bool{
		`{"status": {"conditions": [{"type": "Complete", "status": "True"}]}}`:  true,
		`{"status": {"conditions": [{"type": "Failed", "status": "True"}]}}`:    true,
		`{"status": {"conditions": [{"type": "Suspended", "status": "True"}]}}`: false,
		`{}`: false,
	} {
		var j jobObject
		if err := json.Unmarshal([]byte(text), &j); err != nil {
			t.Fatal(err)
		}
		j.Metadata.CreationTimestamp, j.Spec.Deadline = now.Add(-time.Minute), 600
		j.Metadata.Labels = map[string]string{runLabel: "01234567", nodeLabel: "1-0"}
		for name, ours := range map[string]bool{"rail-verify-01234567-1-0-ab010203": true, "rail-verify-01234567-1-1-ab010203": false, "users-job": false, "": false} {
			if j.Metadata.Name = name; j.hasRunName() != ours {
				t.Errorf("a Job named %q: %v", name, !ours)
			}
		}
		if j.over(now) != want {
			t.Errorf("%s: %v", text, !want)
		}
		if !j.over(now.Add(time.Hour)) {
			t.Errorf("%s: it lives forever", text)
		}
	}
}

func TestProberIsFoundBesideAnInjectedContainer(t *testing.T) {
	var p podObject
	if err := json.Unmarshal([]byte(`{"status": {"containerStatuses": [
		{"name": "proxy", "state": {"terminated": {"reason": "Error"}}}, {"name": "verify", "state": {"waiting": {"reason": "ErrImagePull"}}}]}}`), &p); err != nil {
		t.Fatal(err)
	}
	s := &state{}
	(&Fleet{}).note(t.Context(), s, &p)
	if s.failed || s.why != "the image : ErrImagePull" || !strings.Contains(s.cure, "--image") {
		t.Errorf("%+v", s)
	}
}

// TestPodIsOfTheJobThatMadeIt: everybody who may create pods can give them the labels of a run.
func TestPodIsOfTheJobThatMadeIt(t *testing.T) {
	s := &state{uid: "u-1"}
	f := &Fleet{states: map[string]*state{"0-0": s, "1-0": {}}}
	for text, want := range map[string]bool{
		`{"metadata": {"labels": {"rail-cni.io/verify-node": "0-0"}, "ownerReferences": [{"uid": "u-1", "controller": true}]}}`: true,
		`{"metadata": {"labels": {"rail-cni.io/verify-node": "0-0"}, "ownerReferences": [{"uid": "u-2", "controller": true}]}}`: false,
		`{"metadata": {"labels": {"rail-cni.io/verify-node": "0-0"}, "ownerReferences": [{"uid": "u-1"}]}}`:                     false,
		`{"metadata": {"labels": {"rail-cni.io/verify-node": "0-0"}}}`:                                                          false,
		`{"metadata": {"labels": {"rail-cni.io/verify-node": "1-0"}, "ownerReferences": [{"uid": "", "controller": true}]}}`:    false,
		`{"metadata": {"labels": {"rail-cni.io/verify-node": "9-0"}, "ownerReferences": [{"uid": "u-1", "controller": true}]}}`: false,
	} {
		var p podObject
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			t.Fatal(err)
		}
		if (f.state(&p) == s) != want {
			t.Errorf("%s: %v", text, !want)
		}
	}
}

func TestAllRailsThatOtherPodsHaveAreLeftOutAtOnce(t *testing.T) {
	nad := func(name, config, resource string) Network {
		n, err := readNetwork(must(t, map[string]any{
			"metadata": map[string]any{"namespace": "ml", "name": name, "annotations": map[string]any{resourceKey: resource}},
			"spec":     map[string]any{"config": config},
		}))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	f := &Fleet{run: "00000001", Options: Options{Namespace: "ml", Networks: []Network{
		nad("same-network", `{"name": "r0", "type": "host-device", "hwaddr": "02:00:00:00:00:01"}`, ""),
		nad("same-nic", `{"name": "r1", "plugins": [{"type": "host-device", "device": "ens1"}]}`, ""),
		nad("same-function", `{"name": "r2", "type": "host-device", "pciBusID": "0000:02:00.0"}`, ""),
		nad("returned", `{"name": "r3", "type": "host-device", "device": "ens3"}`, ""),
		nad("of-the-plugin", `{"name": "r4", "type": "host-device"}`, "rdma/hca"),
		nad("shared", `{"name": "r5", "type": "macvlan", "master": "ens5"}`, ""),
		nad("of-the-try-before", `{"name": "r6", "type": "host-device", "device": "ens6"}`, ""),
		nad("known", `{"name": "r7", "type": "host-device", "device": "ens7"}`, ""),
		nad("of-the-same-name", `{"name": "r8", "type": "host-device", "device": "ens8"}`, ""),
	}}}
	lent := func(pod, network, nic, pci string) fact.Attachment {
		return fact.Attachment{Pod: pod, ContainerID: "c1", Network: network, NIC: nic, PCI: pci, Plugin: "host-device", Alive: true, InPod: true}
	}
	dead := lent("ml/t", "r3", "ens3", "")
	dead.InPod = false
	shared := lent("ml/t", "r5", "ens5", "")
	shared.Plugin = "macvlan"
	m := &member{missing: map[int]string{7: "in use by pod ml/first"}, broken: map[int]string{}}
	f.leaveOutHeld(m, []fact.Attachment{
		lent("ml/t", "r0", "x", ""), lent("other/t", "theirs", "ens1", ""), lent("", "theirs", "x", "0000:02:00.0"), dead, lent("ml/t", "r4", "ens4", ""), shared,
		lent("ml/rail-verify-00000001-0-0-ab-x", "r6", "ens6", ""), lent("ml/t", "r7", "ens7", ""),
		lent("other/t", "r8", "ens9", ""), lent("other/t", "theirs", "", ""),
	})
	want := map[int]string{0: "in use by pod ml/t", 1: "in use by pod other/t", 2: "in use by container c1", 7: "in use by pod ml/first"}
	if !maps.Equal(m.missing, want) || len(m.broken) > 0 {
		t.Errorf("%v", m.missing)
	}
}

// TestEachTryHasItsTime: the first try began long ago, but a new try has the full time again.
func TestEachTryHasItsTime(t *testing.T) {
	m := &member{missing: map[int]string{}, broken: map[int]string{}}
	f := &Fleet{Options: Options{Within: time.Hour}, states: map[string]*state{}}
	first := f.begin(m)
	first.until, first.without = time.Now().Add(-time.Second), &left{rail: 1, why: "in use"}
	next := f.leaveOut(first)
	if !first.failed || next.job == first.job || next.renewed == nil {
		t.Fatalf("%+v, %+v", first, next)
	}
	next.until = time.Now()
	next.renewed <- nil
	f.takeRenewed()
	if next.renewed != nil || next.failed || time.Until(next.until) < 59*time.Minute {
		t.Errorf("%+v", next)
	}
}
