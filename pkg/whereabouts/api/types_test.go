package api

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"

	"github.com/k8snetworkplumbingwg/whereabouts/pkg/api/whereabouts.cni.cncf.io/v1alpha1"

	"github.com/rail-cni/rail-cni/pkg/ipam"
)

// These do not compile if whereabouts adds, removes or renames a field.
var (
	_ = v1alpha1.IPAllocation(Entry{})
	_ = v1alpha1.OverlappingRangeIPReservationSpec(ReservationSpec{})
)

var testOwner = ipam.Owner{ContainerID: "some-container", PodRef: "default/pod", IfName: "net1"}

// read decodes data into an object of whereabouts. It fails the test for an
// unknown field.
func read[T any](t *testing.T, data []byte) *T {
	t.Helper()
	object := new(T)
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(object); err != nil {
		t.Fatalf("whereabouts cannot read %s: %v", data, err)
	}
	return object
}

func encode(t *testing.T, object any) []byte {
	t.Helper()
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// same fails the test unless two values have the same JSON.
func same(t *testing.T, what string, ours, theirs any) {
	t.Helper()
	if a, b := encode(t, ours), encode(t, theirs); !bytes.Equal(a, b) {
		t.Errorf("%s: ours is %s, whereabouts' %s", what, a, b)
	}
}

func TestWhereaboutsReadsOurPools(t *testing.T) {
	for name, o := range map[string]ipam.Owner{"with an interface": testOwner, "without": {ContainerID: "c", PodRef: "default/pod"}, "placeholder": {ContainerID: "block"}} {
		t.Run(name, func(t *testing.T) {
			ours := NewIPPool("10.0.0.0-24", "kube-system", "10.0.0.0/24", map[string]Entry{"1": NewEntry(o)})
			theirs := read[v1alpha1.IPPool](t, encode(t, ours))
			if theirs.Kind != "IPPool" || theirs.APIVersion != v1alpha1.SchemeGroupVersion.String() || theirs.Name != "10.0.0.0-24" || theirs.Namespace != "kube-system" {
				t.Errorf("it reads %+v", theirs)
			}
			same(t, "spec", ours.Spec, theirs.Spec)
			same(t, "entry", ours.Spec.Allocations["1"], theirs.Spec.Allocations["1"])
		})
	}
}

func TestWeReadPoolsOfWhereabouts(t *testing.T) {
	theirs := v1alpha1.IPPool{}
	theirs.Name, theirs.Namespace, theirs.UID, theirs.ResourceVersion = "10.0.0.0-24", "kube-system", "some-uid", "7"
	theirs.Spec.Range = "10.0.0.0/24"
	theirs.Spec.Allocations = map[string]v1alpha1.IPAllocation{"5": {ContainerID: "c", PodRef: "default/pod", IfName: "net1"}, "6": {ContainerID: "old", PodRef: "default/old"}}
	ours, err := ParsePool(encode(t, theirs))
	if err != nil {
		t.Fatal(err)
	}
	if ours.Name != theirs.Name || ours.Namespace != theirs.Namespace || ours.UID != string(theirs.UID) || ours.Revision != theirs.ResourceVersion {
		t.Errorf("we read %+v", ours)
	}
	if ours.Prefix != netip.MustParsePrefix(theirs.Spec.Range) {
		t.Errorf("range %s", ours.Prefix)
	}
	same(t, "entries", ours.Entries, theirs.Spec.Allocations)
}

func TestWhereaboutsReadsOurReservations(t *testing.T) {
	ours := NewReservation("10.0.0.1", "kube-system", testOwner)
	theirs := read[v1alpha1.OverlappingRangeIPReservation](t, encode(t, ours))
	if theirs.Kind != "OverlappingRangeIPReservation" || theirs.APIVersion != v1alpha1.SchemeGroupVersion.String() || theirs.Name != "10.0.0.1" {
		t.Errorf("it reads %+v", theirs)
	}
	same(t, "spec", ours.Spec, theirs.Spec)
	if !reflect.DeepEqual(theirs.Spec, v1alpha1.OverlappingRangeIPReservationSpec(ours.Spec)) {
		t.Errorf("it reads %+v of %+v", theirs.Spec, ours.Spec)
	}
}

func TestWeReadNodeSlicesOfWhereabouts(t *testing.T) {
	theirs := v1alpha1.NodeSlicePool{
		Spec:   v1alpha1.NodeSlicePoolSpec{Range: "10.0.0.0/16", SliceSize: "/24"},
		Status: v1alpha1.NodeSlicePoolStatus{Allocations: []v1alpha1.NodeSliceAllocation{{NodeName: "node-a", SliceRange: "10.0.1.0/24"}, {SliceRange: "10.0.2.0/24"}}},
	}
	theirs.Name = "net"
	var ours slicePool
	if err := json.Unmarshal(encode(t, theirs), &ours); err != nil {
		t.Fatal(err)
	}
	if ours.Metadata.Name != theirs.Name {
		t.Errorf("we read %+v", ours)
	}
	same(t, "spec", ours.Spec, theirs.Spec)
	same(t, "status", ours.Status, theirs.Status)
}

func TestOurNamesOfKindsAreThoseOfWhereabouts(t *testing.T) {
	for plural, r := range map[string]struct{ group, version, plural string }{
		"ippools":                        {Pools("").Group, Pools("").Version, Pools("").Plural},
		"overlappingrangeipreservations": {Reservations("").Group, Reservations("").Version, Reservations("").Plural},
		"nodeslicepools":                 {Slices("").Group, Slices("").Version, Slices("").Plural},
	} {
		want := v1alpha1.Resource(plural)
		if r.group != want.Group || r.plural != want.Resource || r.version != v1alpha1.SchemeGroupVersion.Version {
			t.Errorf("ours is %+v, whereabouts' %s in %s", r, want, v1alpha1.SchemeGroupVersion)
		}
	}
}

func TestGuardWithoutItsAnnotationIsNoOrdinaryPool(t *testing.T) {
	o := NewIPPool("10.0.0.0-24", "kube-system", "10.0.0.0/24 in blocks of 16", nil)
	if p, err := ParsePool(encode(t, o)); err == nil {
		t.Errorf("it is %+v", p)
	}
	o.Metadata.Annotations = map[string]string{annotationBlockSize: "16"}
	if p, err := ParsePool(encode(t, o)); err != nil || p.BlockSize != 16 || p.Prefix.String() != "10.0.0.0/24" {
		t.Errorf("%+v, %v", p, err)
	}
}
