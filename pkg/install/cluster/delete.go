package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/rail-cni/rail-cni/pkg/kube"
)

const (
	rbac        = "rbac.authorization.k8s.io"
	flowControl = "flowcontrol.apiserver.k8s.io"
	admission   = "admissionregistration.k8s.io"
)

// made are the kinds of the objects in the manifests, with the agents first. A server may not know
// all of these kinds.
var made = []kube.Resource{
	{Group: "apps", Version: "v1", Plural: "daemonsets"},
	{Group: "apps", Version: "v1", Plural: "deployments"},
	{Group: "coordination.k8s.io", Version: "v1", Plural: "leases"},
	{Group: rbac, Version: "v1", Plural: "rolebindings"},
	{Group: rbac, Version: "v1", Plural: "roles"},
	{Group: rbac, Version: "v1", Plural: "clusterrolebindings"},
	{Group: rbac, Version: "v1", Plural: "clusterroles"},
	{Version: "v1", Plural: "serviceaccounts"},
	{Group: admission, Version: "v1", Plural: "validatingadmissionpolicybindings"},
	{Group: admission, Version: "v1", Plural: "validatingadmissionpolicies"},
	{Group: flowControl, Version: "v1", Plural: "flowschemas"},
	{Group: flowControl, Version: "v1", Plural: "prioritylevelconfigurations"},
}

// delete deletes the objects that the manifests have created.
func (u *Uninstaller) delete(ctx context.Context) error {
	deleted := 0
	for _, r := range made {
		n, err := u.deleteOwned(ctx, r)
		deleted += n
		if err != nil {
			return err
		}
	}
	u.Report(fmt.Sprintf("deleted %d objects", deleted))
	if !u.Definitions {
		u.Report("the CustomResourceDefinitions and the address pools were not deleted")
		return nil
	}
	for _, name := range definitionsOfPools {
		err := u.Client.Delete(ctx, kube.Resource{Group: "apiextensions.k8s.io", Version: "v1", Plural: "customresourcedefinitions"}, name+".whereabouts.cni.cncf.io", kube.Preconditions{})
		if err != nil && !kube.IsNotFound(err) {
			return err
		}
	}
	u.Report("deleted whereabouts' CustomResourceDefinitions and all address pools")
	return nil
}

// deleteOwned deletes all objects of a kind that have rail-cni's label. It returns the number of
// deleted objects.
func (u *Uninstaller) deleteOwned(ctx context.Context, r kube.Resource) (int, error) {
	var found []kube.Meta
	_, err := u.Client.List(ctx, r, kube.ListOptions{LabelSelector: ourLabel, MetadataOnly: true}, func(item []byte) error {
		var o struct{ Metadata kube.Meta }
		err := json.Unmarshal(item, &o)
		found = append(found, o.Metadata)
		return err
	})
	var refused *kube.Error
	if r.Group == flowControl && errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for _, m := range found {
		r.Namespace = m.Namespace
		if err := u.Client.Delete(ctx, r, m.Name, kube.Preconditions{UID: m.UID}); err != nil && !kube.IsNotFound(err) {
			return 0, err
		}
	}
	return len(found), nil
}
