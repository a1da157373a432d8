package nodefile

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// maxFile bounds the size of the files that a configuration names.
const maxFile = 1 << 20

// ReadFile reads a file as [os.ReadFile] does, for a path that the author of a network wrote. It
// returns an error if the file is not regular (a FIFO would block forever) or is larger than 1 MiB.
func ReadFile(name string) ([]byte, error) {
	data, _, err := readFile(name)
	return data, err
}

func readFile(name string) ([]byte, fs.FileInfo, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is not a regular file but %s", name, info.Mode().Type())
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes", name, maxFile)
	}
	return data, info, err
}
