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

// deferred is an address that must be freed later.
type deferred struct {
	// Kubeconfig, Server and Namespace identify the server. If Server is "", the kubeconfig
	// was unreadable, and the server is the one that the kubeconfig names. If Namespace is
	// "", the namespace is that of the kubeconfig's current context. FlatFile is the flat
	// file of the network.
	Kubeconfig string    `json:"kubeconfig"`
	FlatFile   string    `json:"flatFile,omitempty"`
	Server     string    `json:"server,omitempty"`
	Namespace  string    `json:"namespace,omitempty"`
	Pool       ipam.Pool `json:"pool"`
	// Slices is the name of the NodeSlicePool that has the slice of Pool's node, if the
	// slice is not known yet. Pool then has the whole range, and the file name ends in
	// sliceSuffix. If Slices is "", Pool is the pool that has the address.
	Slices string     `json:"slices,omitempty"`
	Owner  ipam.Owner `json:"owner"`
	Note   *note      `json:"note,omitempty"`
	Since  time.Time  `json:"since"`
}

// Journal is the directory of addresses that must be freed later. The directory is made
// with the first entry.
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

// all returns the entries by file name. It skips unreadable files.
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

// each calls do for each entry in a file with the suffix, in random order, until do returns
// false. It skips unreadable files. It also skips the files for whose names wanted returns
// false, because there may be thousands of files, mostly for other pools.
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
	// In random order, so that entries that fail do not block the rest.
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

// mayBeOf reports whether the file may have an entry for the pool at the namespace, or at
// no namespace. It compares the parts of the file's name: put writes the namespace and the
// pool first. The last part does not count, because it is the kubeconfig, or the part at
// which a long name was cut.
func mayBeOf(file, namespace, pool string) bool {
	parts := strings.Split(file, "@")
	whole := parts[:len(parts)-1]
	return (len(whole) < 1 || whole[0] == "" || whole[0] == statefile.Name(namespace)) &&
		(len(whole) < 2 || whole[1] == statefile.Name(pool))
}

// mayBeOwned reports whether the file may have an entry of owner's attachment, according to
// the file's name.
func mayBeOwned(file string, owner ipam.Owner) bool {
	parts := strings.Split(file, "@")
	whole := parts[:len(parts)-1]
	return (len(whole) < 3 || whole[2] == statefile.Name(owner.ContainerID)) && (len(whole) < 4 || whole[3] == statefile.Name(owner.IfName))
}

// jobs returns the entries for pool at client's server and namespace as jobs, at most
// maxTurn of them.
func (j Journal) jobs(client *kube.Client, pool ipam.Pool) []*job {
	same := ofServer(client)
	var jobs []*job
	wanted := func(file string) bool { return mayBeOf(file, client.Namespace(), pool.Name()) }
	err := j.each(journalSuffix, wanted, func(file string, d *deferred) bool {
		if d.Pool == pool && same(d) {
			jobs = append(jobs, &job{ask: &ask{Owner: d.Owner, Note: d.Note, Kubeconfig: d.Kubeconfig, FlatFile: d.FlatFile}, journalFile: file})
		}
		return len(jobs) < maxTurn
	})
	if err != nil {
		return nil // the agent reports it
	}
	return jobs
}

// ofServer returns a function that reports whether an entry is for client's server and
// namespace: either the entry names this server and namespace, or its kubeconfig leads to
// them now. If an entry were carried out at another server, that server would not know the
// address, and the entry would be lost.
func ofServer(client *kube.Client) func(*deferred) bool {
	leads := map[Endpoint]bool{} // most entries have the same endpoint
	return func(d *deferred) bool {
		if d.Server == client.Server() && d.Namespace == client.Namespace() {
			return true
		}
		e := Endpoint{Kubeconfig: d.Kubeconfig, Namespace: d.Namespace}
		same, known := leads[e]
		if !known {
			same = SameServer(client, e)
			leads[e] = same
		}
		return same
	}
}

// SameServer reports whether e leads to the server and the namespace of client. It returns
// false if e's kubeconfig is unreadable. If e has no kubeconfig, it leads to the server of
// this process' service account.
func SameServer(client *kube.Client, e Endpoint) bool {
	other, err := kube.Open(kube.Config{Kubeconfig: e.Kubeconfig, Namespace: e.Namespace})
	return err == nil && other.Server() == client.Server() && other.Namespace() == client.Namespace()
}

// Endpoint is the server of a journal's entry, and the way to reach it.
type Endpoint struct {
	Kubeconfig string
	Namespace  string // "" means the namespace of the kubeconfig's current context
	// FlatFile is the flat file that completed the network's configuration, or "" if there
	// was none. It may be the only reason why the kubeconfig is permitted.
	FlatFile string
}

// Add writes to the journal that the addresses of owner's attachment in pools
// must be freed. It is for a caller that does not know the server.
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

// Waiting returns the number of entries of each endpoint. To replay the entries of an
// endpoint, open a [Store] for the endpoint and call [Store.Replay].
func (j Journal) Waiting() (map[Endpoint]int, error) {
	waiting, err := j.all()
	count := map[Endpoint]int{}
	for _, d := range waiting {
		count[Endpoint{d.Kubeconfig, d.Namespace, d.FlatFile}]++
	}
	return count, err
}

// Replay frees the addresses in the journal that belong to this store's server. It returns
// the number of entries that remain in the journal, and the errors that occurred.
func (s *Store) Replay(ctx context.Context) (left int, err error) {
	errs := []error{s.replaySlices(ctx)}
	waiting, err := s.journal.all()
	if err != nil {
		return 0, errors.Join(append(errs, err)...)
	}
	same := ofServer(s.client)
	pools := map[ipam.Pool]bool{}
	for _, d := range waiting {
		if d.Slices == "" && !pools[d.Pool] && same(d) {
			pools[d.Pool] = true
		}
	}
	for pool := range pools {
		// The writer of a turn also carries out the journal's entries for the pool, under
		// the pool's lock.
		_, err := s.submit(ctx, pool, &ask{})
		errs = append(errs, err)
	}
	waiting, err = s.journal.all()
	return len(waiting), errors.Join(append(errs, err)...)
}
