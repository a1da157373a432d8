package pods

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/verify"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Options say what pods to make.
type Options struct {
	Client    *kube.Client
	Namespace string    // of the pods
	Networks  []Network // rail k is that of the k-th
	Nodes     []string
	Image     string  // "" for that of each node's agent
	Agents    *Agents // may be nil if Image is not ""
	// RDMAImage is an image with the programs of perftest, in which the prober runs then; Image
	// brings the prober. "" for no RDMA.
	RDMAImage string
	Within    time.Duration // in which pods must run, each try of a node anew
	Deadline  time.Duration // after which Kubernetes ends a pod in any case

	// Done, unless nil, is called when the number of pods that run has changed.
	Done func(running, all int)
}

const (
	pollPause   = 300 * time.Millisecond // between two reads of the pods
	eventsPause = time.Second            // between two reads of their events
	atOnce      = 16                     // requests at the same time
	removalTime = time.Minute            // of a run's objects
	maxWithin   = 3                      // times Within that all tries of a node have together
)

// Fleet is the probers of a run. Close ends and removes them.
type Fleet struct {
	Options
	run     string
	members []*member
	states  map[string]*state // by label
}

// state is what is known of a member's try.
type state struct {
	member  *member
	job     string
	uid     string // of the Job, "" until it is made
	until   time.Time
	session *session
	pod     string     // " namespace/name", "" until it is there
	why     string     // it does not run
	cure    string     // of what the pod's status says, "" for nothing
	failed  bool       // it will not run
	without *left      // the rail that the next try leaves out
	renewed chan error // what came of making the Job of another try than the first; nil once that is known
}

// Start makes the pods, and returns when each pod runs, has failed, or did not start in time. A
// node without a running pod is in [Fleet.Nodes] with a prober that returns the reason as its
// error. A rail that another pod uses is left out on that node.
//
// It fails if no pod may be made. The caller closes the fleet also after an error, unless it is
// nil.
func Start(ctx context.Context, o Options) (*Fleet, error) {
	var id [4]byte
	_, _ = rand.Read(id[:]) // it never fails
	f := &Fleet{Options: o, run: hex.EncodeToString(id[:]), states: map[string]*state{}}
	if err := f.removeEnded(ctx); err != nil {
		return nil, err
	}
	for i, node := range o.Nodes {
		m := &member{node: node, index: i, missing: map[int]string{}, broken: map[int]string{}}
		if o.Agents != nil {
			m.image = o.Agents.Image(node)
		}
		f.members = append(f.members, m)
		f.begin(m)
	}
	errs := make([]error, len(f.members))
	each(len(f.members), func(i int) { errs[i] = f.create(ctx, f.states[f.members[i].label()]) })
	if err := errors.Join(errs...); err != nil {
		return f, err
	}
	return f, f.await(ctx)
}

// begin notes a member's try.
func (f *Fleet) begin(m *member) *state {
	_, _ = rand.Read(m.nonce[:]) // it never fails
	s := &state{member: m, job: m.name(f.run), until: time.Now().Add(f.Within), why: "Kubernetes has made no pod yet"}
	f.states[m.label()] = s
	return s
}

// each calls f with the numbers below n, some at the same time.
func each(n int, f func(i int)) {
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
	all.Wait()
}

func (f *Fleet) jobs() kube.Resource {
	return kube.Resource{Group: "batch", Version: "v1", Plural: "jobs", Namespace: f.Namespace}
}

// create makes the Job of a try.
func (f *Fleet) create(ctx context.Context, s *state) error {
	job, err := s.member.job(&f.Options, f.run)
	if err != nil {
		return err
	}
	made, err := f.Client.Create(ctx, f.jobs(), job)
	if kube.IsAlreadyExists(err) {
		// A repeated request finds the Job of the first one: nobody else can know its name.
		_, err = f.Client.List(ctx, f.jobs(), kube.ListOptions{FieldSelector: "metadata.name=" + s.job}, func(item []byte) error {
			var j jobObject
			err := json.Unmarshal(item, &j)
			made = j.Metadata
			return err
		})
	}
	s.uid = made.UID
	return err
}

// Nodes returns the nodes with their probers.
func (f *Fleet) Nodes() []verify.Node {
	nodes := make([]verify.Node, 0, len(f.members))
	for _, m := range f.members {
		s := f.states[m.label()]
		n := verify.Node{Name: m.node, Missing: m.missing, Broken: m.broken}
		if s.session != nil {
			n.Prober = s.session
		} else {
			n.Prober = absent{errors.New(s.why)}
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// Interfaces returns the names of the rails' interfaces in the pods.
func (f *Fleet) Interfaces() (names []string) {
	for k := range f.Networks {
		names = append(names, interfaceOf(k))
	}
	return names
}

// jobObject is what is read of a Job.
type jobObject struct {
	Metadata kube.Meta `json:"metadata"`
	Spec     struct {
		Deadline int64 `json:"activeDeadlineSeconds"`
	} `json:"spec"`
	Status struct {
		Conditions []condition `json:"conditions"`
	} `json:"status"`
}

type condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`

	Since time.Time `json:"lastTransitionTime"`
}

// hasRunName reports whether the Job is named as those of runs are. Its labels alone may be anybody's.
func (j *jobObject) hasRunName() bool {
	l := j.Metadata.Labels
	return strings.HasPrefix(j.Metadata.Name, jobName(l[runLabel], l[nodeLabel])+"-")
}

// over reports whether the Job has ended a while ago, or should have.
func (j *jobObject) over(now time.Time) bool {
	for _, c := range j.Status.Conditions {
		if (c.Type == "Complete" || c.Type == "Failed") && c.Status == "True" && now.Sub(c.Since) > time.Minute {
			return true
		}
	}
	return j.Spec.Deadline > 0 && now.After(j.Metadata.CreationTimestamp.Add(time.Duration(j.Spec.Deadline)*time.Second+time.Minute))
}

// removeEnded removes what earlier runs that were killed have left, if Kubernetes has not yet.
func (f *Fleet) removeEnded(ctx context.Context) error {
	var left []string
	_, err := f.Client.List(ctx, f.jobs(), kube.ListOptions{LabelSelector: runLabel + ",app.kubernetes.io/component=verify"}, func(item []byte) error {
		var j jobObject
		if err := json.Unmarshal(item, &j); err != nil {
			return err
		}
		if j.hasRunName() && j.over(time.Now()) {
			left = append(left, j.Metadata.Name)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, name := range left {
		if err := f.Client.DeleteWithDependents(ctx, f.jobs(), name); err != nil && !kube.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// Close ends the probers, removes the Jobs and pods, and waits until they are gone, a minute at
// most. The error names what is left.
func (f *Fleet) Close() error {
	var ended sync.WaitGroup
	for _, s := range f.states {
		if s.session != nil {
			ended.Go(s.session.close)
		}
	}
	ended.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), removalTime)
	defer cancel()
	labels := slices.Collect(maps.Keys(f.states))
	errs := make([]error, len(labels))
	each(len(labels), func(i int) {
		if err := f.Client.DeleteWithDependents(ctx, f.jobs(), f.states[labels[i]].job); err != nil && !kube.IsNotFound(err) {
			errs[i] = err
		}
	})
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for {
		left, err := f.ownPods(ctx)
		switch {
		case err != nil:
			return err
		case len(left) == 0:
			return nil
		}
		if wait.For(ctx, pollPause) != nil {
			return fmt.Errorf("pod %s/%s and %d others are still there; Kubernetes will remove them when they have ended", f.Namespace, left[0].Metadata.Name, len(left)-1)
		}
	}
}
