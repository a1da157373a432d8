package doctor

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Schema is the schema of the facts of a node. Fields are added to it, none changes.
const Schema = "rail-cni.io/facts/v1"

// The bounds of a document of facts, in bytes. A node with a hundred pods has less than 1 MB.
const (
	maxFacts   = 64 << 20 // of a node
	maxCluster = 512 << 20
)

// Fact is a value that was read, or the reason why it could not be. The zero Fact was never
// read.
type Fact[T any] struct {
	Value  T      `json:"value"`
	Source string `json:"source,omitempty"` // the file, netlink request or API object
	Error  string `json:"error,omitempty"`  // why Value was not read; empty if it was
}

// Known returns the fact of a value that was read from source.
func Known[T any](value T, source string) Fact[T] { return Fact[T]{Value: value, Source: source} }

// Failed returns the fact of a value that could not be read from source. err must not be nil.
func Failed[T any](source string, err error) Fact[T] {
	return Fact[T]{Source: source, Error: err.Error()}
}

// From returns Known or Failed, as err says.
func From[T any](value T, source string, err error) Fact[T] {
	if err != nil {
		return Failed[T](source, err)
	}
	return Known(value, source)
}

// OK reports whether the value was read.
func (f Fact[T]) OK() bool { return f.Source != "" && f.Error == "" }

// asked reports whether a collector tried to read the value. If none did, as when files are
// judged without a cluster, the rule has nothing to judge.
func (f Fact[T]) asked() bool { return f.Source != "" || f.Error != "" }

// why returns why the value is missing.
func (f Fact[T]) why() string {
	switch {
	case f.Error != "" && f.Source != "":
		return f.Source + ": " + f.Error
	case f.Error != "":
		return f.Error
	}
	return notCollected
}

// notCollected is why a fact is missing that no collector tried to read.
const notCollected = "not collected"

// Read returns the value of a fact, and whether it was read. A missing one is noted in the
// report under its name, so that the rule's status is unknown rather than ok.
func Read[T any](r *Report, name string, f Fact[T]) (value T, ok bool) {
	if !f.OK() {
		r.missing = append(r.missing, missing{fmt.Sprintf("%s (%s)", name, f.why()), cmp.Or(f.Error, notCollected)})
		return value, false
	}
	return f.Value, true
}

// ReadFacts reads a document of facts. It refuses one of another schema, one without facts, by
// which each rule would be skipped, and one that is larger than 64 MiB, that of a cluster
// 512 MiB. The document may come from a stranger.
func ReadFacts(from io.Reader) (*Facts, error) {
	text, err := io.ReadAll(io.LimitReader(from, maxCluster+1))
	if err != nil {
		return nil, fmt.Errorf("facts: %w", err)
	}
	f, tooLarge := &Facts{}, "facts: the document is larger than %d bytes; collect them again with `railctl doctor collect`"
	if len(text) > maxCluster {
		return nil, fmt.Errorf(tooLarge, maxCluster)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(f); err != nil {
		return nil, fmt.Errorf("facts: %w; collect them again with `railctl doctor collect`", position(err, text))
	}
	if f.Schema != Schema {
		return nil, fmt.Errorf("facts: the schema is %.60q, not %q; collect them with this version of railctl", f.Schema, Schema)
	}
	if f.Cluster == nil && len(text) > maxFacts {
		return nil, fmt.Errorf(tooLarge, maxFacts)
	}
	if f.Host == nil && f.NICs == nil && f.Ledger == nil && f.CNI == nil && f.Kubelet == nil && f.Agent == nil && f.Configs == nil && f.Pods == nil && f.Cluster == nil {
		return nil, errors.New("facts: the document has none; collect them again with `railctl doctor collect`")
	}
	if f.Cluster != nil {
		f.Cluster.share()
	}
	return f, nil
}

// position adds the line of a syntax error.
func position(err error, text []byte) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) && syntax.Offset <= int64(len(text)) {
		return fmt.Errorf("line %d: %w", 1+bytes.Count(text[:syntax.Offset], []byte("\n")), err)
	}
	return err
}

// Facts are the facts of a node. The facts of a cluster, and those of configuration
// files, have only some of the fields; rules are skipped if their facts were not
// requested.
type Facts struct {
	Schema  string    `json:"schema"`
	Taken   time.Time `json:"taken"`
	Node    string    `json:"node,omitempty"` // its name in the cluster, else its host name
	Version string    `json:"version"`        // of the program that collected them

	Host    *Host    `json:"host,omitempty"`
	NICs    *NICs    `json:"nics,omitempty"`
	Ledger  *Ledger  `json:"ledger,omitempty"`
	CNI     *CNI     `json:"cni,omitempty"`
	Kubelet *Kubelet `json:"kubelet,omitempty"`
	Agent   *Agent   `json:"agent,omitempty"`
	Configs *Configs `json:"configs,omitempty"`
	Pods    []Pod    `json:"pods,omitempty"` // those that hold a NIC
	// Cluster has what is known of the cluster as a whole, nil on a node alone.
	Cluster *Cluster `json:"cluster,omitempty"`
}
