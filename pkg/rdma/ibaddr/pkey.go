package ibaddr

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// PKey is an entry of an InfiniBand port's table of partition keys. The subnet manager fills the
// table. The same partition may have another index on another port, and after a change.
type PKey struct {
	Index int
	Key   uint16
}

// fullMember is the bit of a key that makes a port a full member of the partition (InfiniBand
// Architecture Specification, volume 1, 10.9.3).
const fullMember = 1 << 15

// IsFull reports whether the port is a full member of the partition. Limited members reach only
// full members.
func (k PKey) IsFull() bool { return k.Key&fullMember != 0 }

// Partition returns the number of the partition: the key without the bit of full membership.
func (k PKey) Partition() uint16 { return k.Key &^ fullMember }

func (k PKey) String() string { return fmt.Sprintf("%d=%#04x", k.Index, k.Key) }

// ReadPKeys returns the entries of a port that are in use, by index, and the size of the table. The size is 0 if the
// port does not exist. port is the port's directory in sysfs. ReadPKeys stops after an entry for which last returns true.
func ReadPKeys(port string, last func(PKey) bool) (keys []PKey, size int, err error) {
	files, err := os.ReadDir(filepath.Join(port, "pkeys"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, len(files), err
	}
	for index := range files { // an entry for each index
		text, err := readLine(filepath.Join(port, "pkeys", strconv.Itoa(index)))
		if err != nil {
			return keys, len(files), err
		}
		key, err := strconv.ParseUint(text, 0, 16)
		if err != nil {
			return keys, len(files), err
		}
		if key == 0 {
			continue
		}
		keys = append(keys, PKey{index, uint16(key)})
		if last(keys[len(keys)-1]) {
			break
		}
	}
	return keys, len(files), nil
}

// FindPKey returns the entry of the partition, if there is one. A port may be both a full and a
// limited member (allow_both_pkeys of OpenSM). In that case FindPKey returns the entry of full
// membership, wherever it is.
func FindPKey(keys []PKey, key uint16) (found PKey, ok bool) {
	for _, k := range keys {
		if k.Partition() == (PKey{Key: key}).Partition() && (!ok || k.IsFull() && !found.IsFull()) {
			found, ok = k, true
		}
	}
	return found, ok
}
