package kube_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

type entry struct {
	ID     string `json:"id"`
	PodRef string `json:"podref"`
	IfName string `json:"ifname"`
}

func ipPool(name string, allocations map[string]entry) map[string]any {
	return map[string]any{
		"apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
		"metadata": kube.Meta{Name: name, Labels: map[string]string{"test": "yes"}},
		"spec":     map[string]any{"range": "10.0.0.0/16", "allocations": allocations},
	}
}

// TestServer tests the behavior of a real kube-apiserver and etcd on which the
// callers of this package rely.
func TestServer(t *testing.T) {
	plane := controlplane.Start(t, controlplane.Options{})
	admin := open(t, kube.Config{Kubeconfig: plane.AdminKubeconfig()})
	ctx := within(t, 4*time.Minute)
	create := func(t *testing.T, name string) kube.Meta {
		t.Helper()
		meta, err := admin.Create(ctx, pools, ipPool(name, map[string]entry{}))
		if err != nil {
			t.Fatal(err)
		}
		return meta
	}
	one := entry{ID: "c1", PodRef: "default/p1", IfName: "net1"}

	t.Run("an object's life", func(t *testing.T) {
		_, err := admin.Get(ctx, pools, "life")
		wants(t, err, "get ippools kube-system/life at "+plane.Server(), "NotFound")
		if !kube.IsNotFound(err) {
			t.Error(err)
		}
		made := create(t, "life")
		if made.Name != "life" || made.Namespace != "kube-system" || made.UID == "" || made.ResourceVersion == "" ||
			made.Labels["test"] != "yes" || time.Since(made.CreationTimestamp).Abs() > time.Minute {
			t.Errorf("made %+v", made)
		}
		if _, err := admin.Create(ctx, pools, ipPool("life", map[string]entry{})); !kube.IsAlreadyExists(err) || kube.IsConflict(err) {
			t.Errorf("again: %v", err)
		}
		merged, err := admin.MergePatch(ctx, pools, "life", map[string]any{"metadata": map[string]any{
			"labels": map[string]any{"test": nil}, "annotations": map[string]string{"a": "b"},
		}})
		if err != nil || len(merged.Labels) != 0 || merged.Annotations["a"] != "b" || merged.UID != made.UID || merged.ResourceVersion == made.ResourceVersion {
			t.Errorf("merged %+v, %v", merged, err)
		}
		body, err := admin.Get(ctx, pools, "life")
		if err != nil || !strings.Contains(string(body), `"range":"10.0.0.0/16"`) {
			t.Errorf("%s, %v", body, err)
		}
		for name, wrong := range map[string]kube.Preconditions{
			"UID": {UID: "1-2-3"}, "resource version": {ResourceVersion: made.ResourceVersion},
		} {
			if err := admin.Delete(ctx, pools, "life", wrong); !kube.IsConflict(err) {
				t.Errorf("deleted by another %s: %v", name, err)
			}
		}
		if err := admin.Delete(ctx, pools, "life", kube.Preconditions{UID: merged.UID, ResourceVersion: merged.ResourceVersion}); err != nil {
			t.Error(err)
		}
		if err := admin.Delete(ctx, pools, "life", kube.Preconditions{}); !kube.IsNotFound(err) {
			t.Errorf("deleted again: %v", err)
		}
		if _, err := admin.Patch(ctx, pools, "life", []kube.PatchOp{{Op: "add", Path: "/spec/range", Value: "10.0.0.0/8"}}); !kube.IsNotFound(err) {
			t.Errorf("patched what is gone: %v", err)
		}
	})

	t.Run("a key is taken once", func(t *testing.T) {
		made := create(t, "keys")
		take := func(key, id string) error {
			_, err := admin.Patch(ctx, pools, "keys", []kube.PatchOp{
				{Op: "test", Path: "/spec/allocations/" + key},
				{Op: "add", Path: "/spec/allocations/" + key, Value: entry{ID: id, PodRef: "default/p1", IfName: "net1"}},
			})
			return err
		}
		if err := take("1", "c1"); err != nil {
			t.Fatal(err)
		}
		err := take("1", "c2")
		if !kube.IsRefused(err) || kube.IsConflict(err) || kube.IsUnavailable(err) {
			t.Errorf("taken twice: %v", err)
		}
		wants(t, err, "patch ippools kube-system/keys", "a test of the patch failed")
		free := func(key, id string) error {
			_, err := admin.Patch(ctx, pools, "keys", []kube.PatchOp{
				{Op: "test", Path: "/spec/allocations/" + key + "/id", Value: id},
				{Op: "remove", Path: "/spec/allocations/" + key},
			})
			return err
		}
		for _, c := range []struct{ key, id string }{{"1", "c2"}, {"2", "c1"}} {
			if err := free(c.key, c.id); !kube.IsRefused(err) {
				t.Errorf("freed %+v: %v", c, err)
			}
		}
		if err := free("1", "c1"); err != nil {
			t.Error(err)
		}
		stale := []kube.PatchOp{
			{Op: "test", Path: "/metadata/resourceVersion", Value: made.ResourceVersion},
			{Op: "add", Path: "/spec/allocations/3", Value: one},
		}
		if _, err := admin.Patch(ctx, pools, "keys", stale); !kube.IsRefused(err) {
			t.Errorf("patched an old version: %v", err)
		}
		if _, err := admin.MergePatch(ctx, pools, "keys", map[string]any{"metadata": map[string]any{"resourceVersion": made.ResourceVersion}, "spec": map[string]any{"range": "x"}}); !kube.IsConflict(err) {
			t.Errorf("merged into an old version: %v", err)
		}
		fenced := []kube.PatchOp{
			{Op: "add", Path: "/metadata/resourceVersion", Value: made.ResourceVersion},
			{Op: "add", Path: "/spec/allocations/3", Value: one},
		}
		if _, err := admin.Patch(ctx, pools, "keys", fenced); !kube.IsConflict(err) {
			t.Errorf("patched an old version: %v", err)
		}
		_, err = admin.Patch(ctx, pools, "keys", []kube.PatchOp{{Op: "add", Path: "/spec/allocations/4", Value: 5}})
		wants(t, err, "is invalid", "spec.allocations.4")
		if kube.IsRefused(err) || kube.IsUnavailable(err) {
			t.Errorf("an invalid pool is taken for a lost race: %v", err)
		}
	})

	t.Run("lists and watches", func(t *testing.T) {
		r := pools
		r.Namespace = "default"
		const n = 7
		for i := range n {
			if _, err := admin.Create(ctx, r, ipPool(fmt.Sprint("p", i), map[string]entry{"1": one})); err != nil {
				t.Fatal(err)
			}
		}
		for name, o := range map[string]kube.ListOptions{
			"one page": {}, "pages": {Limit: 3}, "metadata": {MetadataOnly: true, Limit: 3}, "label": {LabelSelector: "test=yes", Limit: 2},
		} {
			var names []string
			version, err := admin.List(ctx, r, o, func(item []byte) error {
				var object struct {
					Metadata kube.Meta       `json:"metadata"`
					Spec     json.RawMessage `json:"spec"`
				}
				if err := json.Unmarshal(item, &object); err != nil {
					return err
				}
				if (object.Spec == nil) != o.MetadataOnly {
					t.Errorf("%s: %s", name, item)
				}
				names = append(names, object.Metadata.Name)
				return nil
			})
			if err != nil || version == "" || !slices.Equal(names, []string{"p0", "p1", "p2", "p3", "p4", "p5", "p6"}) {
				t.Errorf("%s: %q at %q, %v", name, names, version, err)
			}
		}
		version, err := admin.List(ctx, r, kube.ListOptions{FieldSelector: "metadata.name=p3"}, func(item []byte) error {
			if !strings.Contains(string(item), `"p3"`) {
				t.Errorf("not p3: %s", item)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}

		if _, err := admin.MergePatch(ctx, r, "p1", map[string]any{"spec": map[string]any{"range": "10.1.0.0/16"}}); err != nil {
			t.Fatal(err)
		}
		if err := admin.Delete(ctx, r, "p2", kube.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		for _, slim := range []bool{false, true} {
			var seen []string
			began := time.Now()
			err = admin.Watch(ctx, r, kube.ListOptions{ResourceVersion: version, Timeout: 2 * time.Second, MetadataOnly: slim}, func(e kube.Event) error {
				var object struct {
					Metadata kube.Meta       `json:"metadata"`
					Spec     json.RawMessage `json:"spec"`
				}
				if err := json.Unmarshal(e.Object, &object); err != nil {
					return err
				}
				if e.Type != "BOOKMARK" {
					seen = append(seen, e.Type+" "+object.Metadata.Name)
					if (object.Spec == nil) != slim {
						t.Errorf("%s", e.Object)
					}
				}
				return nil
			})
			if err != nil || !slices.Equal(seen, []string{"MODIFIED p1", "DELETED p2"}) {
				t.Errorf("saw %q, %v", seen, err)
			}
			if took := time.Since(began); took < time.Second || took > 20*time.Second {
				t.Errorf("a watch of 2 s lasted %s", took)
			}
		}
		if err := admin.Watch(ctx, r, kube.ListOptions{ResourceVersion: "1"}, func(kube.Event) error { return errEnough }); !errors.Is(err, kube.ErrExpired) && !errors.Is(err, errEnough) {
			t.Errorf("from the beginning: %v", err)
		}
		short := within(t, time.Second)
		if err := admin.Watch(short, r, kube.ListOptions{ResourceVersion: version}, func(kube.Event) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after its time: %v", err)
		}
	})

	t.Run("too large", func(t *testing.T) {
		allocations := func(n int) map[string]entry {
			all := map[string]entry{}
			for i := range n {
				all[fmt.Sprint(i)] = entry{ID: strings.Repeat("c", 64), PodRef: "default/some-pod-with-a-name", IfName: "net1"}
			}
			return all
		}
		for _, n := range []int{14_000, 20_000, 40_000} { // etcd's limit, that of its gRPC, and the server's own
			_, err := admin.Create(ctx, pools, ipPool(fmt.Sprint("large-", n), allocations(n)))
			if !kube.IsTooLarge(err) || kube.IsUnavailable(err) {
				t.Errorf("%d entries: %v", n, err)
			}
		}
		if _, err := admin.Create(ctx, pools, ipPool("grows", allocations(9_000))); err != nil {
			t.Fatal(err)
		}
		more := []kube.PatchOp{}
		for i, e := range allocations(4_000) {
			more = append(more, kube.PatchOp{Op: "add", Path: "/spec/allocations/1" + i, Value: e})
		}
		_, err := admin.Patch(ctx, pools, "grows", more)
		if !kube.IsTooLarge(err) || kube.IsUnavailable(err) {
			t.Errorf("grown: %v", err)
		}
	})

	t.Run("rights", func(t *testing.T) {
		account, err := plane.ServiceAccount(ctx, "default", "nobody")
		if err != nil {
			t.Fatal(err)
		}
		path, err := plane.Kubeconfig(account, controlplane.Form{CredentialFile: true, CAFile: true, Relative: true, Namespace: "rails"})
		if err != nil {
			t.Fatal(err)
		}
		nobody := open(t, kube.Config{Kubeconfig: path})
		if nobody.Namespace() != "rails" {
			t.Errorf("namespace %q", nobody.Namespace())
		}
		for verb, do := range map[string]func() error{
			"get":    func() error { _, err := nobody.Get(ctx, pools, "x"); return err },
			"list":   func() error { _, err := nobody.List(ctx, pools, kube.ListOptions{}, nil); return err },
			"watch":  func() error { return nobody.Watch(ctx, pools, kube.ListOptions{}, nil) },
			"create": func() error { _, err := nobody.Create(ctx, pools, ipPool("x", nil)); return err },
			"patch":  func() error { _, err := nobody.MergePatch(ctx, pools, "x", struct{}{}); return err },
			"delete": func() error { return nobody.Delete(ctx, pools, "x", kube.Preconditions{}) },
		} {
			err := do()
			if !kube.IsForbidden(err) || failure.KindOf(err) != failure.InvalidConfig {
				t.Errorf("%s: %v", verb, err)
			}
			wants(t, err, verb+" ippools kube-system", plane.Server(), `apiGroups ["whereabouts.cni.cncf.io"]`, `resources ["ippools"]`,
				fmt.Sprintf("verbs [%q]", verb), `in the namespace "kube-system"`, `bound to "system:serviceaccount:default:nobody"`)
		}
		everywhere := pools
		everywhere.Namespace = ""
		_, err = nobody.List(ctx, everywhere, kube.ListOptions{}, nil)
		wants(t, err, "in all namespaces")
		// Since Kubernetes 1.35 both verbs are needed, but the server's message names only one of them.
		err = nobody.Exec(ctx, "kube-system", "x", "c", []string{"x"}, io.Discard)
		wants(t, err, `resources ["pods/exec"]`, `verbs ["create", "get"]`, `in the namespace "kube-system"`)
		const rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/"
		for plural, o := range map[string]map[string]any{
			"roles": {"rules": []any{map[string]any{"apiGroups": []string{""}, "resources": []string{"pods/exec"}, "verbs": []string{"get"}}}},
			"rolebindings": {
				"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "gets"},
				"subjects": []any{map[string]any{"kind": "ServiceAccount", "namespace": "default", "name": "nobody"}},
			},
		} {
			o["metadata"] = map[string]any{"name": "gets"}
			if code, answer, err := plane.Admin().Create(ctx, rbac+plural, o); err != nil || code != http.StatusCreated {
				t.Fatal(code, string(answer), err)
			}
		}
		for began := time.Now(); ; time.Sleep(100 * time.Millisecond) { // the authorizer sees the role a moment later
			err = nobody.Exec(ctx, "kube-system", "x", "c", []string{"x"}, io.Discard)
			if !kube.IsForbidden(err) || !strings.Contains(err.Error(), "cannot get") || time.Since(began) > time.Minute {
				break
			}
		}
		if kube.IsForbidden(err) { // a server before 1.35 looks for the pod then
			wants(t, err, `resources ["pods/exec"]`, `verbs ["create", "get"]`, "the token in "+path+".token")
		}

		if code, answer, err := plane.Admin().Delete(ctx, "/api/v1/namespaces/default/serviceaccounts/nobody"); err != nil || code != http.StatusOK {
			t.Fatal(code, string(answer), err)
		}
		// The server caches an accepted token for some seconds.
		for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(time.Second) {
			if _, err = nobody.Get(ctx, pools, "x"); !kube.IsForbidden(err) {
				break
			}
		}
		wants(t, err, "401", "the token in "+path+".token")
	})

	t.Run("a CRD that is not there", func(t *testing.T) {
		missing := pools
		missing.Plural = "ipools"
		_, err := admin.Get(ctx, missing, "x")
		wants(t, err, "ipools.whereabouts.cni.cncf.io", "v1alpha1", "CRD")
		if kube.IsNotFound(err) || kube.IsUnavailable(err) {
			t.Errorf("%v", err)
		}
		if _, err := admin.Create(ctx, missing, ipPool("x", nil)); err == nil || kube.IsNotFound(err) {
			t.Errorf("%v", err)
		}
	})

	t.Run("of core kinds the path is another", func(t *testing.T) {
		body, err := admin.Get(ctx, kube.Resource{Version: "v1", Plural: "namespaces"}, "kube-system")
		if err != nil || !strings.Contains(string(body), `"Namespace"`) {
			t.Errorf("%s, %v", body, err)
		}
	})

	// This is the last test, because it kills the server.
	t.Run("killed and started again", func(t *testing.T) {
		create(t, "survivor")
		plane.KillAPIServer()
		_, err := admin.Get(within(t, time.Second), pools, "survivor")
		if !kube.IsUnavailable(err) || failure.KindOf(err) != failure.TryAgain {
			t.Errorf("of a dead server: %v", err)
		}
		wants(t, err, plane.Server(), "get ippools kube-system/survivor")
		restarted := make(chan error, 1)
		go func() { restarted <- plane.StartAPIServer(ctx) }()
		if _, err := admin.Get(ctx, pools, "survivor"); err != nil {
			t.Errorf("while it starts: %v", err)
		}
		if err := <-restarted; err != nil {
			t.Fatal(err)
		}
		if err := plane.PauseEtcd(); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(2*time.Second, func() {
			if err := plane.ResumeEtcd(); err != nil {
				t.Error(err)
			}
		})
		began := time.Now()
		quick := open(t, kube.Config{Kubeconfig: plane.AdminKubeconfig(), Timeout: time.Second})
		if _, err := quick.MergePatch(ctx, pools, "survivor", map[string]any{"metadata": map[string]any{"labels": map[string]string{"a": "b"}}}); err != nil {
			t.Errorf("while etcd slept: %v", err)
		}
		if took := time.Since(began); took < 1500*time.Millisecond {
			t.Errorf("etcd slept for 2 s, but the patch took %s", took)
		}
	})
}
