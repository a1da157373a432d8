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

// Options describe the pods to make.
type Options struct {
	Client    *kube.Client
	Namespace string    // of the pods
	Networks  []Network // the k-th network is for rail k
	Nodes     []string
	Image     string  // "" for the image of each node's agent
	Agents    *Agents // may be nil if Image is not ""
	// RDMAImage is an image with the programs of perftest. If it is set, the prober runs in this
	// image, and a container with Image copies the prober into it. If it is "", RDMA is not
	// measured.
	RDMAImage string
	Within    time.Duration // the time after which a pod must run; it begins again with each try of a node
	Deadline  time.Duration // the time after which Kubernetes ends a pod, even if this process was killed

	// Done, if it is not nil, is called when the number of running pods has changed.
	Done func(running, all int)
}

const (
	pollPause   = 300 * time.Millisecond // the time between two reads of the pods
	eventsPause = time.Second            // the time between two reads of their events
	atOnce      = 16                     // the maximum number of requests at the same time
	removalTime = time.Minute            // the time limit for removing the objects of a run
	maxWithin   = 3                      // all tries of a node together may take this many times Within
)

// Fleet has the probers of a run. Close ends and removes them.
type Fleet struct {
	Options
	run     string
	members []*member
	states  map[string]*state // by label
}

// state is what is known about one try of a member.
type state struct {
	member  *member
	job     string
	uid     string // of the Job, "" until it is made
	until   time.Time
	session *session
	pod     string     // " namespace/name"; "" as long as there is no pod
	why     string     // the reason why the pod does not run
	cure    string     // the cure for the problem in the pod's status, "" if there is none
	failed  bool       // true if the pod will never run
	without *left      // the rail that the next try leaves out
	renewed chan error // gets the outcome of making the Job, if this is not the first try; nil as soon as the outcome is known
}

// Start makes the pods. It returns when each pod runs, has failed, or did not start in time. If a
// node has no running pod, its prober in [Fleet.Nodes] returns the reason as an error. If another
// pod uses a rail on a node, this rail is left out on that node.
//
// Start returns an error if it may not make any pod. The caller must close the fleet even after an
// error, except if the fleet is nil.
func Start(ctx context.Context, o Options) (*Fleet, error) {
	var id [4]byte
	_, _ = rand.Read(id[:]) // rand.Read never fails
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

// begin adds the state of the member's present try.
func (f *Fleet) begin(m *member) *state {
	_, _ = rand.Read(m.nonce[:]) // rand.Read never fails
	s := &state{member: m, job: m.name(f.run), until: time.Now().Add(f.Within), why: "Kubernetes has made no pod yet"}
	f.states[m.label()] = s
	return s
}

// each calls f with each number from 0 to n-1. Several calls run at the same time.
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
		// If the request was repeated, the Job may exist from the first attempt. It cannot be
		// somebody else's Job, because nobody else knows the name.
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

// Nodes returns the nodes of the run with their probers.
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

// jobObject has the fields of a Job that are read.
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

// hasRunName reports whether the name of the Job has the form that runs use. The labels alone are
// not enough, because anybody can set them.
func (j *jobObject) hasRunName() bool {
	l := j.Metadata.Labels
	return strings.HasPrefix(j.Metadata.Name, jobName(l[runLabel], l[nodeLabel])+"-")
}

// over reports whether the Job has ended some time ago, or should have ended by now.
func (j *jobObject) over(now time.Time) bool {
	for _, c := range j.Status.Conditions {
		if (c.Type == "Complete" || c.Type == "Failed") && c.Status == "True" && now.Sub(c.Since) > time.Minute {
			return true
		}
	}
	return j.Spec.Deadline > 0 && now.After(j.Metadata.CreationTimestamp.Add(time.Duration(j.Spec.Deadline)*time.Second+time.Minute))
}

// removeEnded removes Jobs that earlier, killed runs have left, if Kubernetes has not removed them
// yet.
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

// Close ends the probers, removes the Jobs and pods, and waits until they are gone, but at most a
// minute. The error names the objects that are left.
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
