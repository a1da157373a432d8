package store

import (
	"encoding/json"
	"time"
)

const (
	silenceFile = "silent"
	// silentFor is how long DELs leave everything to the journal after one of them
	// waited for the server in vain: a pod's rails come one by one, each in a
	// process of its own.
	silentFor = 30 * time.Second
)

// silence is what the node remembers of a server that does not answer in time.
type silence struct {
	Since time.Time `json:"since"`
	Why   string    `json:"why"`
}

// silent remembers that the server does not answer, because of why. DELs then do
// not ask it; an ADD does.
func (s *Store) silent(why error) {
	data, err := json.Marshal(silence{time.Now(), why.Error()})
	if err == nil {
		err = s.dir.Write(silenceFile, data)
	}
	s.warnIf(err)
}

// heard forgets the silence: the server works again.
func (s *Store) heard() {
	if s.dir.Exists(silenceFile) {
		s.warnIf(s.dir.Remove(silenceFile))
	}
}

// Silence returns why DELs do not ask the server now, or "".
func (s *Store) Silence() string {
	data, err := s.dir.Read(silenceFile)
	var last silence
	if err != nil || json.Unmarshal(data, &last) != nil {
		return ""
	}
	if age := time.Since(last.Since); age < 0 || age > silentFor { // a clock may be set back
		return ""
	}
	return last.Why
}
