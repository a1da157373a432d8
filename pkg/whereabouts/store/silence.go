package store

import (
	"encoding/json"
	"time"
)

const (
	silenceFile = "silent"
	// silentFor is how long DELs go to the journal at once, after one DEL has waited for
	// the server without an answer. The DELs of a pod's rails come one after the other,
	// each in a process of its own, and each of them would wait again.
	silentFor = 30 * time.Second
)

// silence is the node's memory of a server that does not answer in time.
type silence struct {
	Since time.Time `json:"since"`
	Why   string    `json:"why"`
}

// recordSilence records that the server does not answer, and the reason. After that, DELs
// make no request for a time. ADDs make requests as before.
func (s *Store) recordSilence(why error) {
	data, err := json.Marshal(silence{time.Now(), why.Error()})
	if err == nil {
		err = s.dir.Write(silenceFile, data)
	}
	s.warnIf(err)
}

// forgetSilence removes the record of the silence, because the server works again.
func (s *Store) forgetSilence() {
	if s.dir.Exists(silenceFile) {
		s.warnIf(s.dir.Remove(silenceFile))
	}
}

// Silence returns the reason why DELs make no request now, or "".
func (s *Store) Silence() string {
	data, err := s.dir.Read(silenceFile)
	var last silence
	if err != nil || json.Unmarshal(data, &last) != nil {
		return ""
	}
	if age := time.Since(last.Since); age < 0 || age > silentFor { // the clock may have been set back
		return ""
	}
	return last.Why
}
