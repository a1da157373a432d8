package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxText is the maximum size, in bytes, of a file that is read completely.
const maxText = 1 << 20

// ReadText returns the content of a file without the last newline. It does not block if the path is
// a FIFO. It returns an error if the file is larger than 1 MiB.
func ReadText(path string) (string, error) { return ReadUpTo(path, maxText) }

// ReadUpTo is [ReadText] for a file of at most maxBytes bytes.
func ReadUpTo(path string, maxBytes int64) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(err, fmt.Errorf("%s is not a regular file", path))
	}
	text, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err == nil && int64(len(text)) > maxBytes {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxBytes)
	}
	return strings.TrimRight(string(text), "\n"), err
}

// Names returns the names in a directory. It returns none if the directory does not exist.
func Names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// Exists reports whether a path exists. It returns an error if it cannot find that out.
func Exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// LinesWith returns the lines of text for which wanted returns true, in their order. If there are
// more than maxLines such lines, it returns only the first ones.
func LinesWith(text string, maxLines int, wanted func(line string) bool) []string {
	var found []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && wanted(line) && len(found) < maxLines {
			found = append(found, line)
		}
	}
	return found
}

// Number returns the number in the text of a file. It returns err if err is not nil.
func Number(text string, err error) (uint64, error) {
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(text, 10, 64)
}
