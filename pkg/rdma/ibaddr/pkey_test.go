package ibaddr

import "testing"

func TestPartitionIsFoundByItsNumber(t *testing.T) {
	table := []PKey{{0, 0x7fff}, {1, 0x0010}, {3, 0x8010}, {10, 0x8030}}
	for key, want := range map[uint16]PKey{
		0xffff: {0, 0x7fff}, 0x7fff: {0, 0x7fff}, // limited is better than none
		0x8010: {3, 0x8010}, 0x0010: {3, 0x8010}, // the full entry, which follows the limited one
		0x8030: {10, 0x8030},
	} {
		if got, ok := FindPKey(table, key); !ok || got != want {
			t.Errorf("%#x: %v %v, want %v", key, got, ok, want)
		}
	}
	if got, ok := FindPKey(table, 0x8040); ok {
		t.Errorf("a partition that the port is not in: %v", got)
	}
}
