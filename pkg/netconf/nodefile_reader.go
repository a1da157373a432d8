package netconf

import (
	"bytes"
	"io/fs"
	"sync"
	"syscall"
)

// NodeFileReader reads the node file for a long-running process, and parses it only when it has
// changed. Its zero value is ready, and its methods may be called concurrently.
type NodeFileReader struct {
	// Path is the path of the file, "" for that of this node.
	Path string

	mu         sync.Mutex
	read       nodeFileText
	file       *NodeFile
	err        error
	generation uint64
}

// nodeFileText is what the outcome of [ReadNodeFile] depends on.
type nodeFileText struct {
	path string
	text []byte
	mode fs.FileMode
	uid  uint32
	err  string
}

func (t *nodeFileText) equal(o *nodeFileText) bool {
	return t.path == o.path && t.mode == o.mode && t.uid == o.uid && t.err == o.err && bytes.Equal(t.text, o.text)
}

// Read returns what [ReadNodeFile] returns now, and a generation, which grows with each change of
// it and begins with 1. It compares the text and not the time of modification, so that no change
// is missed. Callers share the file, and must not change it.
func (r *NodeFileReader) Read() (file *NodeFile, generation uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	path := r.Path
	if path == "" {
		path = NodeFilePath()
	}
	text, info, err := readFile(path)
	now := nodeFileText{path: path, text: text}
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
		r.file, r.err = newNodeFile(path, text, info, err)
		r.generation++
	}
	return r.file, r.generation, r.err
}
