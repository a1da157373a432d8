package fact

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Schema is the schema of a document of facts. New versions may add fields, but they never change a
// field.
const Schema = "rail-cni.io/facts/v1"

// These are the maximum sizes of a document of facts, in bytes. A node with a hundred pods has less
// than 1 MB of facts.
const (
	maxFacts   = 64 << 20 // of a node
	maxCluster = 512 << 20
)

// Decode reads a document of facts, which may come from a stranger. It returns an error if the
// document has another schema. It also returns an error if the document has no facts, because then
// every rule would be skipped. The maximum size is 512 MiB for a cluster and 64 MiB for any other
// document.
func Decode(from io.Reader) (*Facts, error) {
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
		return nil, fmt.Errorf("facts: %w; collect them again with `railctl doctor collect`", WithLine(err, text))
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

// WithLine returns err with the number of the line, if err is a syntax error in text.
func WithLine(err error, text []byte) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) && syntax.Offset <= int64(len(text)) {
		return fmt.Errorf("line %d: %w", 1+bytes.Count(text[:syntax.Offset], []byte("\n")), err)
	}
	return err
}

// Facts are the facts of a node. The facts of a cluster, and the facts of configuration files, have
// only some of the fields. A rule is skipped if nobody tried to read its facts.
type Facts struct {
	Schema  string    `json:"schema"`
	Taken   time.Time `json:"taken"`
	Node    string    `json:"node,omitempty"` // the node's name in the cluster; without a cluster, its host name
	Version string    `json:"version"`        // of the program that collected the facts

	Host    *Host    `json:"host,omitempty"`
	NICs    *NICs    `json:"nics,omitempty"`
	Ledger  *Ledger  `json:"ledger,omitempty"`
	CNI     *CNI     `json:"cni,omitempty"`
	Kubelet *Kubelet `json:"kubelet,omitempty"`
	Agent   *Agent   `json:"agent,omitempty"`
	Configs *Configs `json:"configs,omitempty"`
	Pods    []Pod    `json:"pods,omitempty"` // the pods that hold a NIC
	// Cluster has the facts of the cluster as a whole. It is nil in the facts of one node.
	Cluster *Cluster `json:"cluster,omitempty"`
}

// ListNICs returns the NICs of the node. It returns none if they could not be read.
func (f *Facts) ListNICs() []*NIC {
	var all []*NIC
	if f.NICs != nil && f.NICs.List.OK() {
		for i := range f.NICs.List.Value {
			all = append(all, &f.NICs.List.Value[i])
		}
	}
	return all
}
