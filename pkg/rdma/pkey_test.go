package rdma

import (
	"fmt"
	"slices"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

// The kernel lists the files of a table without sorting the numbers, and lists empty entries as
// well.
func TestTableOfPartitionsIsReadByIndex(t *testing.T) {
	tree := map[string]string{}
	for i := range 12 {
		tree[fmt.Sprintf("class/infiniband/mlx5_0/ports/1/pkeys/%d", i)] = "0x0000\n"
	}
	for i, key := range map[int]string{0: "0x7fff", 2: "0x8010", 10: "0x8030"} {
		tree[fmt.Sprintf("class/infiniband/mlx5_0/ports/1/pkeys/%d", i)] = key + "\n"
	}
	c := offline(t, nil, sysfs(t, tree))
	keys, err := c.PKeys(device0, 1)
	if want := []ibaddr.PKey{{Index: 0, Key: 0x7fff}, {Index: 2, Key: 0x8010}, {Index: 10, Key: 0x8030}}; err != nil || !slices.Equal(keys, want) {
		t.Errorf("%v %v, want %v", keys, err, want)
	}
}

// After an entry of full membership no further entry is read. After a limited one, a later entry
// may be better.
func TestTableIsReadAsFarAsTheFullMember(t *testing.T) {
	tree := map[string]string{}
	for i, key := range []string{"0x7fff", "0x0000", "0x8010", "not a key"} {
		tree[fmt.Sprintf("class/infiniband/mlx5_0/ports/1/pkeys/%d", i)] = key + "\n"
	}
	c := offline(t, nil, sysfs(t, tree))
	if found, ok, _, err := c.Member(device0, 1, 0x0010); err != nil || !ok || found != (ibaddr.PKey{Index: 2, Key: 0x8010}) {
		t.Errorf("%v %v %v", found, ok, err)
	}
	if found, ok, _, err := c.Member(device0, 1, 0xffff); err == nil {
		t.Errorf("it did not read on behind a limited member: %v %v", found, ok)
	}
}

func TestMemberReturnsTheKeysOfAPortThatIsNone(t *testing.T) {
	tree := map[string]string{}
	for i, key := range []string{"0xffff", "0x0000", "0x8010"} {
		tree[fmt.Sprintf("class/infiniband/mlx5_0/ports/1/pkeys/%d", i)] = key + "\n"
	}
	found, ok, keys, err := offline(t, nil, sysfs(t, tree)).Member(device0, 1, 0x8020)
	if want := []ibaddr.PKey{{Index: 0, Key: 0xffff}, {Index: 2, Key: 0x8010}}; err != nil || ok || !slices.Equal(keys, want) {
		t.Errorf("%v %v %v %v, want %v", found, ok, keys, err, want)
	}
}
