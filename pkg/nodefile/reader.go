package nodefile

import (
	"bytes"
	"io/fs"
	"sync"
	"syscall"
)

// Reader reads the node file for a long-running process. It parses the file only if the file has
// changed. The zero value is ready to use. The methods may be called concurrently.
type Reader struct {
	// Path is the path of the file, or "" for the path of this node's file.
	Path string

	mu         sync.Mutex
	read       fileText
	file       *File
	err        error
	generation uint64
}

// fileText has everything on which the result of [Read] depends.
type fileText struct {
	path string
	text []byte
	mode fs.FileMode
	uid  uint32
	err  string
}

func (t *fileText) equal(o *fileText) bool {
	return t.path == o.path && t.mode == o.mode && t.uid == o.uid && t.err == o.err && bytes.Equal(t.text, o.text)
}

// Read returns what the function [Read] returns now. It also returns a generation, which begins
// with 1 and grows each time the result changes. Read compares the text of the file, not its time
// of modification, so that no change is missed. Callers share the returned file, and must not
// change it.
func (r *Reader) Read() (file *File, generation uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	path := r.Path
	if path == "" {
		path = Path()
	}
	text, info, err := readFile(path)
	now := fileText{path: path, text: text}
	if info != nil {
		now.mode = info.Mode()
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			now.uid = st.Uid
		}
	}
	if err != nil {
		now.err = err.Error()
	}
	if r.generation == 0 || !now.equal(&r.read) {
		r.read = now
		r.file, r.err = newFile(path, text, info, err)
		r.generation++
	}
	return r.file, r.generation, r.err
}
