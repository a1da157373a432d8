package rig

import (
	"context"
	"errors"
	"path/filepath"
)

// fabricTree has the programs of an InfiniBand fabric. Where opensm is installed, its service
// manages the fabric of the machine.
var fabricTree = tree{"fabric", "1 MB", []string{"opensm", "infiniband-diags"}, true}

// fabricPrograms are the subnet manager, and programs that read what it made of the fabric.
var fabricPrograms = []string{"opensm", "ibstat", "sminfo", "ibnetdiscover"}

// fabricFiles returns the programs, and the libraries that they load, each by its name in the
// guest. Nothing starts OpenSM: a test does (package opensm).
func (b *builder) fabricFiles(ctx context.Context) (map[string]string, error) {
	dir, err := b.unpacked(ctx, fabricTree)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	var errs []error
	for _, program := range fabricPrograms {
		errs = append(errs, addPackaged(ctx, names, dir, filepath.Join("sbin", program), "/bin/"+program))
	}
	return names, errors.Join(errs...)
}
