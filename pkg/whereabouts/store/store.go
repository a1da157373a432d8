package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/statefile"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/sandbox"
)

// RetryFor is the RetryFor of the client's [kube.Config]: how long a request is repeated
// before a release goes to the journal. It is short because the end of a pod must not wait
// for the server.
const RetryFor = 5 * time.Second

// Options configures a [Store].
type Options struct {
	// Client is opened with [RetryFor].
	Client *kube.Client
	// Kubeconfig is the kubeconfig that Client was opened with. The notes of addresses name
	// it, for a DEL that has no config.
	Kubeconfig string
	// FlatFile is the flat file of the network, see [Endpoint], or "" if the network has
	// none.
	FlatFile string
	// StateDir and JournalDir are absolute paths of directories of the node. The store is
	// in the directory "ipam-kubernetes" in StateDir.
	StateDir, JournalDir string
	// Netns is the path of the network namespace of the pod that Allocate is called for. It
	// is "" if there is no namespace, or if the namespace may outlive the pod.
	Netns string
	// Warn is called with errors that do not fail a call; it may be nil.
	Warn func(err error)
	// Slow is called with a warning if patches of a pool are slow: after a patch of that
	// pool, and by Status. It may be nil.
	Slow func(err error)
}

// Store is one node's access to the cluster's address store. It is safe for
// concurrent use by goroutines and processes. Close it when done.
type Store struct {
	client     *kube.Client
	kubeconfig string
	flatFile   string
	journal    Journal
	sandbox    sandbox.Sandbox
	warn, slow func(error)

	base   string         // the directory of all servers
	server string         // the name of dir in base
	dir    *statefile.Dir // of this server and namespace
	notes  notes
}

var _ ipam.Store = (*Store)(nil)

const (
	storeDir  = "ipam-kubernetes"
	queuesDir = "pools"
	// undoTime bounds the rollback of a failed ADD. The ADD's own time does not bound it.
	undoTime = 10 * time.Second
	// delPatience bounds how long a release may take before it goes to the journal. It
	// suffices for one request without an answer, and for the work before that request.
	delPatience = 12 * time.Second
)

// New opens the node's side of the store and makes its directories. It makes no
// request.
func New(o Options) (*Store, error) {
	s := &Store{
		client: o.Client, kubeconfig: o.Kubeconfig, flatFile: o.FlatFile, journal: Journal{o.JournalDir}, sandbox: sandbox.Open(o.Netns), warn: o.Warn, slow: o.Slow,
		base: filepath.Join(o.StateDir, storeDir), server: statefile.Name(o.Client.Server(), o.Client.Namespace()),
	}
	base, err := statefile.Open(s.base)
	if err != nil {
		return nil, err
	}
	defer base.Close()
	base.Volatile()
	if s.dir, err = base.Sub(s.server); err != nil {
		return nil, err
	}
	if s.notes.dir, err = s.dir.Sub(notesDir); err != nil {
		return nil, errors.Join(err, s.dir.Close())
	}
	return s, nil
}

// Close closes the directories.
func (s *Store) Close() error { return errors.Join(s.notes.dir.Close(), s.dir.Close()) }

func (s *Store) warnIf(err error) {
	if err != nil && s.warn != nil {
		s.warn(err)
	}
}

// queueDir opens the directory of the node's queue for pool.
func (s *Store) queueDir(pool ipam.Pool) (*statefile.Dir, error) {
	pools, err := s.dir.Sub(queuesDir)
	if err != nil {
		return nil, err
	}
	defer pools.Close()
	return pools.Sub(statefile.Name(pool.Name()))
}

// submit has the ask a carried out on pool, by this process or by another one, and returns
// the answer.
func (s *Store) submit(ctx context.Context, pool ipam.Pool, a *ask) (answer, error) {
	a.Kubeconfig, a.FlatFile = s.kubeconfig, s.flatFile
	dir, err := s.queueDir(pool)
	if err != nil {
		return answer{}, err
	}
	defer dir.Close()
	return queue{dir}.submit(ctx, a, func(ctx context.Context, self *job, jobs []*job) error {
		return s.takeTurn(ctx, pool, self, jobs)
	})
}

// Allocate implements [ipam.Store].
func (s *Store) Allocate(ctx context.Context, owner ipam.Owner, claims []ipam.Claim) ([]netip.Prefix, error) {
	var got []netip.Prefix
	var pools []ipam.Pool
	born := time.Now() // or earlier
	if made := s.sandbox.Born; !made.IsZero() && made.Before(born) {
		born = made
	}
	for _, c := range claims {
		spec := c.Range.Spec()
		for _, g := range got {
			// Ranges may overlap, and a reservation does not exclude its own
			// owner.
			spec.Avoid = append(slices.Clip(spec.Avoid), g.Addr())
		}
		pools = append(pools, c.Pool)
		request := &ask{
			Owner: owner, Range: &spec, Want: c.Want, Exclusive: c.Exclusive, Rotate: c.Rotate, Born: born, isCanceled: s.sandbox.Gone,
		}
		given, err := s.submit(ctx, c.Pool, request)
		if s.sandbox.Gone() {
			err = s.sandbox.GoneError()
		}
		if err != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
			defer cancel()
			return nil, errors.Join(err, s.Release(ctx, owner, pools))
		}
		got = append(got, netip.PrefixFrom(given.Addr, c.Pool.Prefix.Bits()))
	}
	return got, nil
}

// Release implements [ipam.Store]. It frees the addresses of owner's attachment in pools,
// and in the pools that the node's notes name for the attachment. These are notes for this
// server, and for servers that the kubeconfig named earlier. If an address cannot be freed
// now, Release writes it to the journal, which is not an error.
func (s *Store) Release(ctx context.Context, owner ipam.Owner, pools []ipam.Pool) error {
	noted, err := s.notes.list(attachmentPrefix(owner))
	errs := []error{err}
	s.eachFormerNote(s.kubeconfig, owner, func(_ notes, n *note) { noted = append(noted, n) })
	for _, n := range noted {
		if !slices.Contains(pools, n.Pool) {
			pools = append(slices.Clip(pools), n.Pool)
		}
	}
	var silence string
	for _, pool := range pools {
		silence, err = s.release(ctx, owner, pool, silence)
		errs = append(errs, err)
	}
	err = errors.Join(errs...)
	if err == nil {
		s.eachFormerNote(s.kubeconfig, owner, func(all notes, n *note) { s.warnIf(all.drop(owner, n.Pool.Name())) })
	}
	return err
}

// eachFormerNote calls do with each note of owner's attachment that has the same
// kubeconfig, but another server or namespace than this store. The kubeconfig named that
// server when the attachment got its addresses, and was changed since then.
func (s *Store) eachFormerNote(kubeconfig string, owner ipam.Owner, do func(all notes, n *note)) {
	eachServer(s.base, func(server string, all notes) {
		found, _ := all.list(attachmentPrefix(owner))
		for _, n := range found {
			if server != s.server && n.Kubeconfig == kubeconfig {
				do(all, n)
			}
		}
	})
}

// release frees owner's address of pool. silence is the reason why the server did not
// answer for an earlier pool of the same call, or "". If there is a reason, release writes
// to the journal at once, so that a silent server costs a call one timeout, not one timeout
// for each pool. It returns the reason for the next pool.
func (s *Store) release(ctx context.Context, owner ipam.Owner, pool ipam.Pool, silence string) (string, error) {
	j := &job{ask: &ask{Owner: owner, Note: s.notes.get(owner, pool.Name())}}
	silence = cmp.Or(silence, s.Silence())
	var done answer
	var err error
	if silence != "" {
		err = errors.New(silence)
	} else {
		began := time.Now()
		within, cancel := context.WithTimeout(ctx, delPatience)
		done, err = s.submit(within, pool, j.ask)
		cancel()
		if took := time.Since(began); took >= RetryFor && s.Silence() == "" {
			s.recordSilence(fmt.Errorf("freeing an address took %s", took.Round(time.Second)))
		}
	}
	// The queue may be on a full file system; the journal is on another one.
	unqueued := failure.KindOf(err) == failure.IO
	if err != nil && (silence != "" || api.IsTransient(err) || api.IsAccessError(err) || unqueued) {
		s.deferAsk(pool, j, err)
		done, err = j.answer, j.err
	}
	if done.Deferred != "" {
		s.warnIf(failure.New(failure.TryAgain, "the address of pool %s is freed later, by the next call of this node that reaches the server: %s", pool.Name(), done.Deferred))
	}
	return cmp.Or(silence, done.Silence), err
}

// deferAsk writes j to the journal, so that its address is freed later. why is the reason.
func (s *Store) deferAsk(pool ipam.Pool, j *job, why error) {
	if j.journalFile == "" {
		kubeconfig, flatFile := j.Kubeconfig, j.FlatFile
		if kubeconfig == "" { // it was not posted
			kubeconfig, flatFile = s.kubeconfig, s.flatFile
		}
		d := &deferred{
			Kubeconfig: kubeconfig, FlatFile: flatFile, Server: s.client.Server(), Namespace: s.client.Namespace(),
			Pool: pool, Owner: j.Owner, Note: j.Note, Since: time.Now().UTC(),
		}
		if err := s.journal.put(d); err != nil {
			j.finish(netip.Addr{}, errors.Join(why, err))
			return
		}
	}
	j.finish(netip.Addr{}, nil)
	if api.IsTransient(why) && !errors.Is(why, api.ErrContended) {
		j.answer.Silence = why.Error()
	}
	j.answer.Deferred = why.Error()
}

// Check implements [ipam.Store].
func (s *Store) Check(ctx context.Context, owner ipam.Owner, pools []ipam.Pool) ([]netip.Prefix, error) {
	var got []netip.Prefix
	for _, pool := range pools {
		state, err := s.readPool(ctx, pool)
		if err != nil {
			return nil, err
		}
		addr, _, ok := state.Find(func(_ netip.Addr, e api.Entry) bool { return owner.Ends(e.Owner()) })
		if !ok {
			return nil, failure.New(failure.Mismatch, "this attachment has no address in IPPool %s/%s", s.client.Namespace(), pool.Name()).
				Cure("delete the pod, so that it is attached again")
		}
		got = append(got, netip.PrefixFrom(addr, pool.Prefix.Bits()))
	}
	return got, nil
}

// GC implements [ipam.Store]. It frees only addresses in this node's notes: the other nodes
// share the pools, but the runtime's list does not have their attachments.
func (s *Store) GC(ctx context.Context, network string, _ []ipam.Pool, valid []ipam.Attachment) error {
	began := time.Now()
	all, err := s.notes.list("")
	errs := []error{err}
	var silence string
	for _, n := range all {
		a := ipam.Attachment{ContainerID: n.Owner.ContainerID, IfName: n.Owner.IfName}
		if n.Owner.Network == network && !n.Since.After(began) && !slices.Contains(valid, a) {
			silence, err = s.release(ctx, n.Owner, n.Pool, silence)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Status implements [ipam.Store].
func (s *Store) Status(ctx context.Context, claims []ipam.Claim) error {
	for _, c := range claims {
		state, err := s.readPool(ctx, c.Pool)
		if err == nil {
			err = state.Guarded()
		}
		if err == nil {
			_, err = ipam.Choose(c.Range, state.Used())
		}
		if err != nil {
			return failure.Wrap(err, failure.NotAvailable, "no address can be assigned")
		}
		s.warnIfSlow(c.Pool, s.latencyOf(c.Pool))
	}
	return nil
}

// AllocatedPools returns the pools in which owner's attachment has addresses, by the
// kubeconfig that names their cluster. It reads this node's notes in stateDir. It is for a
// DEL whose config is unreadable, or names another server.
func AllocatedPools(stateDir string, owner ipam.Owner) map[string][]ipam.Pool {
	found := map[string][]ipam.Pool{}
	for _, n := range noted(stateDir, attachmentPrefix(owner)) {
		found[n.Kubeconfig] = append(found[n.Kubeconfig], n.Pool)
	}
	return found
}

// Allocation is an address that an attachment of this node has.
type Allocation struct {
	ipam.Owner
	Addr netip.Addr
}

// Allocations returns the addresses of this node's attachments, from the notes
// in stateDir.
func Allocations(stateDir string) []Allocation {
	var found []Allocation
	for _, n := range noted(stateDir, "") {
		found = append(found, Allocation{n.Owner, n.Addr})
	}
	return found
}

// noted returns the notes whose file names begin with prefix, of all servers.
func noted(stateDir, prefix string) []*note {
	var found []*note
	eachServer(filepath.Join(stateDir, storeDir), func(_ string, all notes) {
		noted, _ := all.list(prefix)
		found = append(found, noted...)
	})
	return found
}

// eachServer calls do with the notes of each server in base.
func eachServer(base string, do func(server string, all notes)) {
	servers, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, server := range servers {
		dir, err := statefile.OpenExisting(filepath.Join(base, server.Name(), notesDir))
		if err != nil {
			continue
		}
		do(server.Name(), notes{dir})
		_ = dir.Close()
	}
}
