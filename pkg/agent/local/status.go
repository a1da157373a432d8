package local

import (
	"time"

	"github.com/rail-cni/rail-cni/pkg/ledger"
)

// Status is the answer to GET /status. Each component of the agent adds its own fields. If a
// component does not run, its fields are empty.
type Status struct {
	Version     string     `json:"version"`
	Node        string     `json:"node"`
	Since       time.Time  `json:"since"`
	StateDirs   []StateDir `json:"stateDirs"`
	Binaries    []Binary   `json:"binaries"`
	Journal     int        `json:"journal"` // the number of addresses that wait to be freed
	JournalErr  string     `json:"journalError,omitempty"`
	MemoryBytes int64      `json:"memoryBytes"` // resident memory
	// NRI is true if the NRI plugin is connected to the container runtime.
	NRI bool `json:"nri"`
	// Kubeconfig describes the kubeconfig of the plugin whereabouts. It is nil if the agent does
	// not maintain the kubeconfig, or has not checked it yet.
	Kubeconfig *Kubeconfig `json:"kubeconfig,omitempty"`
}

// StateDir is the status of a state directory.
type StateDir struct {
	Path    string    `json:"path"`
	Checked time.Time `json:"looked"` // time of the last check
	Ending  []Ending  `json:"ending"` // attachments whose pod is gone
}

// Ending is an attachment that is being ended, or could not be ended.
type Ending struct {
	ledger.Key
	NIC   string      `json:"nic"`
	Pod   *ledger.Pod `json:"pod,omitempty"`
	Since time.Time   `json:"since"`
	Tries int         `json:"tries"`
	Next  time.Time   `json:"next,omitzero"`
	Error string      `json:"error,omitempty"`
}

// Binary is an installed plugin.
type Binary struct {
	Path  string `json:"path"`
	State string `json:"state,omitempty"` // the problem, "" if it is rail-cni's plugin
}

// Kubeconfig is the agent's knowledge about the kubeconfig with which the plugin whereabouts reaches the API
// server.
type Kubeconfig struct {
	Path     string `json:"path"`
	Owned    bool   `json:"ours"`              // true if rail-agent wrote the file and renews its token
	Accepted bool   `json:"accepted"`          // true if the server accepted it when it was last asked
	Refused  string `json:"refused,omitempty"` // the reason why the server does not accept it
	Unasked  string `json:"unasked,omitempty"` // the reason why it is not known whether the server accepts it
}
