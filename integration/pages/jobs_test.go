package pages

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/examples"
	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// definition returns a definition of Kubeflow's training operator.
func definition(t *testing.T, plural string) []byte {
	t.Helper()
	return testnet.ModuleFile(t, "integration/peers/kubeflow", "github.com/kubeflow/training-operator", "manifests/base/crds/kubeflow.org_"+plural+".yaml")
}

// The jobs are what the API server takes, with no field that it does not know. MPIJob is that of
// the training operator here, version v1: the MPI operator's module with v2beta1 cannot be had.
// Both have the fields of the example.
func TestJobsAreWhatTheServerTakes(t *testing.T) {
	plane := controlplane.Start(t, controlplane.Options{CRDs: [][]byte{definition(t, "pytorchjobs"), definition(t, "mpijobs")}})
	paths := map[string]string{
		"Job": "/apis/batch/v1/namespaces/default/jobs", "Service": "/api/v1/namespaces/default/services", "ConfigMap": "/api/v1/namespaces/default/configmaps",
		"PyTorchJob": "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs", "MPIJob": "/apis/kubeflow.org/v1/namespaces/default/mpijobs",
	}
	for _, file := range []string{"job/allreduce.yaml", "job/mpijob.yaml", "job/pytorchjob.yaml"} {
		objects, err := examples.Objects(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			kind, _ := o["kind"].(string)
			if kind == "MPIJob" {
				if o["apiVersion"] != "kubeflow.org/v2beta1" {
					t.Errorf("%s: %v", file, o["apiVersion"])
				}
				o["apiVersion"] = "kubeflow.org/v1"
			}
			code, answer, err := plane.Admin().Create(t.Context(), paths[kind]+"?fieldValidation=Strict", o)
			if err != nil || code != http.StatusCreated {
				t.Errorf("%s, %s: %d, %v: %s", file, kind, code, err, answer)
			}
			o["unknown"] = true
			if code, answer, err := plane.Admin().Create(t.Context(), paths[kind]+"?fieldValidation=Strict&dryRun=All", o); err != nil || code != http.StatusBadRequest {
				t.Errorf("an unknown field of a %s is taken: %d, %v: %s", kind, code, err, answer)
			}
		}
	}
}

// Each worker of the jobs for GPUs asks for as many rails as it names networks, and has shared memory.
func TestWorkersHaveAllRailsAndSharedMemory(t *testing.T) {
	type template struct {
		Metadata struct{ Annotations map[string]string }
		Spec     struct {
			Containers []struct {
				Resources    struct{ Limits map[string]any }
				VolumeMounts []struct{ Name, MountPath string }
			}
			Volumes []struct {
				Name     string
				EmptyDir struct{ Medium string }
			}
		}
	}
	for file, fields := range map[string][]string{
		"job/allreduce.yaml": {"template"}, "job/mpijob.yaml": {"mpiReplicaSpecs", "Worker", "template"},
		"job/pytorchjob.yaml": {"pytorchReplicaSpecs", "Master", "template"},
	} {
		objects, err := examples.Objects(file)
		if err != nil {
			t.Fatal(err)
		}
		at, _ := objects[len(objects)-1]["spec"].(map[string]any)
		for _, field := range fields {
			at, _ = at[field].(map[string]any)
		}
		var pod template
		text, err := json.Marshal(at)
		if err == nil {
			err = json.Unmarshal(text, &pod)
		}
		if err != nil || len(pod.Spec.Containers) != 1 {
			t.Fatalf("%s: %v: %s", file, err, text)
		}
		c, networks := pod.Spec.Containers[0], pod.Metadata.Annotations["k8s.v1.cni.cncf.io/networks"]
		if n := strings.Count(networks, "roce-net") + strings.Count(networks, `"rail-`); n != 8 {
			t.Errorf("%s: %d networks: %s", file, n, networks)
		}
		if gpus, rails := c.Resources.Limits["nvidia.com/gpu"], c.Resources.Limits["rdma/roce"]; file != "job/allreduce.yaml" && (gpus != 8.0 || rails != 8.0) {
			t.Errorf("%s: %v GPUs, %v rails", file, gpus, rails)
		}
		shared := false
		for _, m := range c.VolumeMounts {
			for _, v := range pod.Spec.Volumes {
				shared = shared || v.Name == m.Name && m.MountPath == "/dev/shm" && v.EmptyDir.Medium == "Memory"
			}
		}
		if !shared {
			t.Errorf("%s: no memory at /dev/shm", file)
		}
	}
}
