package store

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

const journalSuffix = ".free"

// deferred is an address to be freed later.
type deferred struct {
	// Kubeconfig, Server and Namespace say where. Without a server (from before
	// it was written, or when the kubeconfig could not be read) it is that of the
	// kubeconfig, and an empty namespace that of its current context. FlatFile is
	// the flat file of the network.
	Kubeconfig string    `json:"kubeconfig"`
	FlatFile   string    `json:"flatFile,omitempty"`
	Server     string    `json:"server,omitempty"`
	Namespace  string    `json:"namespace,omitempty"`
	Pool       ipam.Pool `json:"pool"`
	// Slices names the NodeSlicePool that holds the slice of Pool's node, if that is
	// not known yet: Pool then has the whole range, and the file name ends in
	// sliceSuffix. It is "" if Pool is the pool itself.
	Slices string     `json:"slices,omitempty"`
	Owner  ipam.Owner `json:"owner"`
	Note   *note      `json:"note,omitempty"`
	Since  time.Time  `json:"since"`
}

// Journal is the directory of addresses that are to be freed later. It is made with its
// first entry.
type Journal struct{ Path string }

func (j Journal) put(d *deferred) error {
	dir, err := statefile.Open(j.Path)
	if err != nil {
		return err
	}
	defer dir.Close()
	data, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	return dir.Write(d.file(), append(data, '\n'))
}

// file returns the name of d's file.
func (d *deferred) file() string {
	name := statefile.Name(d.Namespace, d.Pool.Name(), d.Owner.ContainerID, d.Owner.IfName, d.Kubeconfig)
	if d.Slices != "" {
		return name + sliceSuffix
	}
	return name + journalSuffix
}

func (j Journal) drop(name string) error {
	dir, err := statefile.OpenExisting(j.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Remove(name)
}

// all returns the entries by file name. Files that cannot be read are left alone.
func (j Journal) all() (map[string]*deferred, error) {
	found := map[string]*deferred{}
	var errs []error
	for _, suffix := range []string{journalSuffix, sliceSuffix} {
		errs = append(errs, j.each(suffix, everyFile, func(name string, d *deferred) bool {
			found[name] = d
			return true
		}))
	}
	return found, errors.Join(errs...)
}

// each calls do for the entries in files with the suffix, in no order, until do
// returns false. It skips files that cannot be read, and those for whose names wanted
// returns false: there may be thousands, mostly of other pools.
func (j Journal) each(suffix string, wanted func(file string) bool, do func(name string, d *deferred) bool) error {
	dir, err := statefile.OpenExisting(j.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	files, err := dir.List(suffix)
	if err != nil {
		return err
	}
	// What cannot be done must not keep the rest from its turn.
	rand.Shuffle(len(files), func(i, k int) { files[i], files[k] = files[k], files[i] })
	for _, file := range files {
		if !wanted(file) {
			continue
		}
		data, err := dir.Read(file)
		var d deferred
		if err == nil && json.Unmarshal(data, &d) == nil && d.Owner.ContainerID != "" && !do(file, &d) {
			break
		}
	}
	return nil
}

// mayBeOf reports whether the file is of the namespace, or of an older version that
// named none, and of the pool, as far as its name tells: put writes those first,
// and the last part is the kubeconfig, or where a long name was cut.
func mayBeOf(file, namespace, pool string) bool {
	parts := strings.Split(file, "@")
	whole := parts[:len(parts)-1]
	return (len(whole) < 1 || whole[0] == "" || whole[0] == statefile.Name(namespace)) &&
		(len(whole) < 2 || whole[1] == statefile.Name(pool))
}

// mayBeOwned reports whether the file is of owner's attachment, as far as its name
// tells.
func mayBeOwned(file string, owner ipam.Owner) bool {
	parts := strings.Split(file, "@")
	whole := parts[:len(parts)-1]
	return (len(whole) < 3 || whole[2] == statefile.Name(owner.ContainerID)) && (len(whole) < 4 || whole[3] == statefile.Name(owner.IfName))
}

// jobs returns what waits for pool at client's server and namespace.
func (j Journal) jobs(client *kube.Client, pool ipam.Pool) []*job {
	here := isAt(client)
	var jobs []*job
	wanted := func(file string) bool { return mayBeOf(file, client.Namespace(), pool.Name()) }
	err := j.each(journalSuffix, wanted, func(file string, d *deferred) bool {
		if d.Pool == pool && here(d) {
			jobs = append(jobs, &job{ask: &ask{Owner: d.Owner, Note: d.Note, Kubeconfig: d.Kubeconfig, FlatFile: d.FlatFile}, journalFile: file})
		}
		return len(jobs) < longestTurn
	})
	if err != nil {
		return nil // the agent says so
	}
	return jobs
}

// isAt returns what reports whether an entry is of client's server and namespace: those
// that say so themselves, and those with a kubeconfig that leads there. Another
// server would know nothing of the address, and what was to be freed would be
// forgotten.
func isAt(client *kube.Client) func(*deferred) bool {
	leads := map[Endpoint]bool{} // most entries have one endpoint
	return func(d *deferred) bool {
		if d.Server == client.Server() && d.Namespace == client.Namespace() {
			return true
		}
		e := Endpoint{Kubeconfig: d.Kubeconfig, Namespace: d.Namespace}
		here, known := leads[e]
		if !known {
			here = SameServer(client, e)
			leads[e] = here
		}
		return here
	}
}

// SameServer reports whether e leads to the server and namespace of client. An
// endpoint that cannot be read leads nowhere; one without a kubeconfig is that of
// this process' service account.
func SameServer(client *kube.Client, e Endpoint) bool {
	there, err := kube.Open(kube.Config{Kubeconfig: e.Kubeconfig, Namespace: e.Namespace})
	return err == nil && there.Server() == client.Server() && there.Namespace() == client.Namespace()
}

// Endpoint says how to reach the server of a journal's entry.
type Endpoint struct {
	Kubeconfig string
	Namespace  string // "" is that of the kubeconfig's current context
	// FlatFile is the flat file that completed the network's configuration, "" if
	// there was none. The kubeconfig may be allowed only because this file names it.
	FlatFile string
}

// Add writes into the journal that the addresses of owner's attachment in pools are to
// be freed. It is for a caller that does not know the server.
func (j Journal) Add(e Endpoint, owner ipam.Owner, pools []ipam.Pool) error {
	for _, pool := range pools {
		d := &deferred{
			Kubeconfig: e.Kubeconfig, FlatFile: e.FlatFile, Namespace: e.Namespace,
			Pool: pool, Owner: owner, Since: time.Now().UTC(),
		}
		if err := j.put(d); err != nil {
			return err
		}
	}
	return nil
}

// Waiting counts what waits in the journal, by where it is to be freed: each endpoint
// is for a Store of its own to [Store.Replay].
func (j Journal) Waiting() (map[Endpoint]int, error) {
	waiting, err := j.all()
	count := map[Endpoint]int{}
	for _, d := range waiting {
		count[Endpoint{d.Kubeconfig, d.Namespace, d.FlatFile}]++
	}
	return count, err
}

// Replay frees what the journal has for this store's server, and says how many
// entries are left and why.
func (s *Store) Replay(ctx context.Context) (left int, err error) {
	errs := []error{s.replaySlices(ctx)}
	waiting, err := s.journal.all()
	if err != nil {
		return 0, errors.Join(append(errs, err)...)
	}
	here := isAt(s.client)
	pools := map[ipam.Pool]bool{}
	for _, d := range waiting {
		if d.Slices == "" && !pools[d.Pool] && here(d) {
			pools[d.Pool] = true
		}
	}
	for pool := range pools {
		// The turn's writer sees to the pool's part of the journal, under its lock.
		_, err := s.submit(ctx, pool, &ask{})
		errs = append(errs, err)
	}
	waiting, err = s.journal.all()
	return len(waiting), errors.Join(append(errs, err)...)
}
