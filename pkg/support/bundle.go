package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// These are the maximum sizes of a bundle and of a file in it, in bytes before compression. The
// facts of 64 nodes are about 30 MB.
const (
	maxFile   = 128 << 20
	maxBundle = 512 << 20
)

// Bundle is a support bundle to which files are added. It is safe for concurrent use. If the writer
// fails, Close returns the error.
type Bundle struct {
	mu      sync.Mutex
	file    *gzip.Writer
	archive *tar.Writer
	name    string // the name of the directory in the archive
	taken   time.Time
	head    string // the first paragraph of README.txt

	about   map[string]string // the description of each file
	removed map[string]int    // the number of secrets that were left out of each file
	missing []string
	size    int
	err     error

	maxFile, maxBundle int // in bytes
}

// New begins a bundle. Its files are in a directory with this name. head is the first paragraph of
// README.txt.
func New(w io.Writer, name, head string, taken time.Time) *Bundle {
	file := gzip.NewWriter(w)
	return &Bundle{file: file, archive: tar.NewWriter(file), name: name, head: head, taken: taken, about: map[string]string{}, removed: map[string]int{}, maxFile: maxFile, maxBundle: maxBundle}
}

// Add adds a text as a file, without the secrets in it. about is the line about the file in
// README.txt. If about is "", the file is of the same kind as the file before it in the directory.
// If the text is too long, only its last whole lines are added.
func (b *Bundle) Add(path, about string, text []byte) {
	if len(text) > b.maxFile {
		whole := len(text)
		text = wholeLines(text[whole-b.maxFile:])
		b.Missing(path, fmt.Errorf("it has %d bytes, and only the last %d are here", whole, len(text)))
	}
	clean, n := withoutSecrets(string(text), strings.HasSuffix(path, ".html"))
	b.write(path, about, []byte(clean), n)
}

// wholeLines returns a text whose beginning was cut off, without its first line. The first line is
// not complete, so secrets in it could not be recognized.
func wholeLines(text []byte) []byte {
	_, lines, _ := bytes.Cut(text, []byte("\n"))
	return lines
}

// AddJSON adds a value as a JSON file, without the secrets in it.
func (b *Bundle) AddJSON(path, about string, value any) {
	text, err := json.Marshal(value)
	if err == nil {
		err = b.AddText(path, about, text)
	}
	if err != nil {
		b.Missing(path, err)
	}
}

// AddText adds a JSON document as a file, without the secrets in it. It returns an error if the
// text is not JSON.
func (b *Bundle) AddText(path, about string, text []byte) error {
	var document any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&document); err != nil {
		return fmt.Errorf("it is not JSON: %w", err)
	}
	n := 0
	document = scrub(document, &n)
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetIndent("", " ")
	e.SetEscapeHTML(false)
	if err := e.Encode(document); err != nil {
		return err
	}
	if out.Len() > b.maxFile {
		return fmt.Errorf("it has %d bytes, more than %d", out.Len(), b.maxFile)
	}
	b.write(path, about, out.Bytes(), n)
	return nil
}

// Missing notes that what could not be read because of err.
func (b *Bundle) Missing(what string, err error) {
	text, _ := withoutSecrets(err.Error(), false)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.missing = append(b.missing, what+": "+strings.Join(strings.Fields(text), " "))
}

// write adds a file whose secrets were already removed. removed is the number of these secrets.
func (b *Bundle) write(path, about string, text []byte, removed int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.size+len(text) > b.maxBundle {
		b.missing = append(b.missing, fmt.Sprintf("%s: the bundle would have more than %d bytes", path, b.maxBundle))
		return
	}
	b.size += len(text)
	b.about[path] = about
	if removed > 0 {
		b.removed[path] = removed
	}
	b.put(path, text)
}

// put writes a file to the archive.
func (b *Bundle) put(path string, text []byte) {
	if b.err != nil {
		return
	}
	b.err = b.archive.WriteHeader(&tar.Header{Name: b.name + "/" + path, Mode: 0o600, Size: int64(len(text)), ModTime: b.taken})
	if b.err == nil {
		_, b.err = b.archive.Write(text)
	}
}

// Close adds README.txt and ends the bundle. It returns a list of the things that could not be
// read, and the first error of the writer.
func (b *Bundle) Close() (missing []string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	slices.Sort(b.missing)
	b.put("README.txt", []byte(b.readme()))
	return b.missing, errors.Join(b.err, b.archive.Close(), b.file.Close())
}

// readme returns the text of README.txt.
func (b *Bundle) readme() string {
	var t strings.Builder
	fmt.Fprintf(&t, "%s\nTaken %s.\n\nINSIDE\n\n", b.head, b.taken.UTC().Format(time.RFC3339))
	for _, path := range slices.Sorted(maps.Keys(b.about)) {
		fmt.Fprintf(&t, "  %s\n", path)
		if about := b.about[path]; about != "" {
			fmt.Fprintf(&t, "      %s\n", about)
		}
	}
	t.WriteString("\nLEFT OUT\n\n" + leftOut)
	for _, path := range slices.Sorted(maps.Keys(b.removed)) {
		fmt.Fprintf(&t, "  %s: %d\n", path, b.removed[path])
	}
	if len(b.removed) == 0 {
		t.WriteString("  none was found\n")
	}
	t.WriteString("\nNOT READ\n\n")
	for _, m := range b.missing {
		fmt.Fprintf(&t, "  %s\n", m)
	}
	if len(b.missing) == 0 {
		t.WriteString("  everything could be read\n")
	}
	return t.String()
}

const leftOut = `Secrets, ConfigMaps and kubeconfigs were not read. Names of hosts, pods and
networks, and addresses, are in the files. Look through the files before you give
them to anybody.

In all files, the text "` + removedText + `" stands for private keys, tokens, passwords in
URLs, values of keys like "token", "password", "secret" or "client-key-data", and values
of flags and of environment variables with such names. The copies of objects in annotations of kubectl,
and managedFields, are removed. The number of such values in each file:

`
