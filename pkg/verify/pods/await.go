package pods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// podObject is what is read of a pod.
type podObject struct {
	Metadata kube.Meta `json:"metadata"`
	Status   struct {
		Phase      string      `json:"phase"`
		Reason     string      `json:"reason"`
		Message    string      `json:"message"`
		Conditions []condition `json:"conditions"`
		Containers []struct {
			Name  string `json:"name"`
			State struct {
				Running    *struct{} `json:"running"`
				Waiting    *reason   `json:"waiting"`
				Terminated *reason   `json:"terminated"`
			} `json:"state"`
		} `json:"containerStatuses"`
	} `json:"status"`
}

type reason struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

func (r reason) String() string { return brief(strings.TrimSpace(r.Reason + " " + r.Message)) }

// mostReason bounds what is kept of a message, in bytes.
const mostReason = 1 << 10

// brief returns the beginning of a message.
func brief(s string) string {
	if len(s) > mostReason {
		return strings.ToValidUTF8(s[:mostReason], "") + " …"
	}
	return s
}

// pods returns the pods of the run.
func (f *Fleet) pods(ctx context.Context) ([]podObject, error) {
	var found []podObject
	_, err := f.Client.List(ctx, podsIn(f.Namespace), kube.ListOptions{LabelSelector: runLabel + "=" + f.run}, func(item []byte) error {
		var p podObject
		if err := json.Unmarshal(item, &p); err != nil {
			return err
		}
		found = append(found, p)
		return nil
	})
	return found, err
}

// await attaches to each pod that runs, until none is waited for or the time is over.
func (f *Fleet) await(ctx context.Context) error {
	deadline := time.Now().Add(f.Within)
	for looked := time.Now(); ; {
		pods, err := f.pods(ctx)
		if err != nil {
			return err
		}
		for i := range pods {
			if s := f.states[pods[i].Metadata.Labels[nodeLabel]]; s != nil && s.waits() {
				f.note(ctx, s, &pods[i])
			}
		}
		waiting := f.waiting()
		if len(waiting) > 0 && time.Since(looked) > lookEvents {
			f.readEvents(ctx, waiting, pods)
			waiting, looked = f.waiting(), time.Now()
		}
		if f.Done != nil {
			f.Done(len(f.members)-len(waiting), len(f.members))
		}
		if len(waiting) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			for _, s := range waiting {
				s.failed, s.why = true, fmt.Sprintf("its pod does not run after %s: %s", f.Within, s.why)
			}
			return nil
		}
		if err := wait.For(ctx, look); err != nil {
			return err
		}
	}
}

// waits reports whether the pod may still run.
func (s *state) waits() bool { return s.session == nil && !s.failed }

// waiting returns the states of the members whose pods do not run yet.
func (f *Fleet) waiting() (all []*state) {
	for _, m := range f.members {
		if s := f.states[m.label()]; s.waits() {
			all = append(all, s)
		}
	}
	return all
}

// note takes what a pod's status says.
func (f *Fleet) note(ctx context.Context, s *state, p *podObject) {
	if p.Status.Phase == "Failed" || p.Status.Phase == "Succeeded" {
		s.failed, s.why = true, fmt.Sprintf("its pod %s/%s has ended: %s", f.Namespace, p.Metadata.Name, reason{p.Status.Reason, p.Status.Message})
	}
	for _, c := range p.Status.Conditions {
		if c.Type == "PodScheduled" && c.Status == "False" {
			s.why = reason{c.Reason, c.Message}.String()
		}
	}
	for _, c := range p.Status.Containers {
		switch {
		case c.Name != container: // something was added to the pod
		case c.State.Running != nil:
			s.session = attach(ctx, f.Client, f.Namespace, p.Metadata.Name)
		case c.State.Terminated != nil:
			s.failed, s.why = true, fmt.Sprintf("the prober in its pod %s/%s has ended: %s", f.Namespace, p.Metadata.Name, c.State.Terminated)
		case c.State.Waiting != nil && c.State.Waiting.Reason != "ContainerCreating":
			s.why = c.State.Waiting.String()
		}
	}
}

// readEvents takes what events say of pods that do not run, and of Jobs without a pod.
func (f *Fleet) readEvents(ctx context.Context, waiting []*state, pods []podObject) {
	each(len(waiting), func(i int) {
		s := waiting[i]
		about := s.job
		for _, p := range pods {
			if p.Metadata.Labels[nodeLabel] == s.member.label() {
				about = p.Metadata.Name
			}
		}
		message, count, err := f.lastWarning(ctx, about)
		if err != nil {
			message = fmt.Sprintf("the events of %s: %v", about, err)
		}
		if message == "" {
			return
		}
		s.why = brief(message)
		s.without = f.blamed(s, message, count)
	})
	waiting = slices.DeleteFunc(waiting, func(s *state) bool { return s.without == nil })
	next := make([]*state, len(waiting))
	for i, s := range waiting {
		next[i] = f.leaveOut(s)
	}
	each(len(waiting), func(i int) {
		if next[i] == nil {
			return
		}
		if err := f.replace(ctx, waiting[i]); err != nil {
			next[i].failed, next[i].why = true, err.Error()
		}
	})
}

// ofNetwork finds the network in an error of Multus.
var ofNetwork = regexp.MustCompile(`error adding container to network "[^"]*": `)

// lastWarning returns the last warning about an object, and how often one about the same network
// was seen.
func (f *Fleet) lastWarning(ctx context.Context, name string) (message string, count int, err error) {
	var last string
	seen := map[string]int{} // by the network
	_, err = f.Client.List(ctx, kube.Resource{Version: "v1", Plural: "events", Namespace: f.Namespace},
		kube.ListOptions{FieldSelector: "type=Warning,involvedObject.name=" + name}, func(item []byte) error {
			var e struct {
				Message string `json:"message"`
				Count   int    `json:"count"`
				Last    string `json:"lastTimestamp"`
			}
			if err := json.Unmarshal(item, &e); err != nil {
				return err
			}
			if seen[ofNetwork.FindString(e.Message)] += max(e.Count, 1); e.Last >= last {
				last, message = e.Last, e.Message
			}
			return nil
		})
	return message, seen[ofNetwork.FindString(message)], err
}

// left is a rail that a pod cannot have.
type left struct {
	rail   int
	why    string
	defect bool
}

// lentTo finds the holder in an error of host-device.
var lentTo = regexp.MustCompile(` is lent to ((?:pod|container) [^ ,;]{1,320})`)

// blamed returns the rail whose network an event blames, nil for none. The errors are those of
// Multus and of our plugins. A rail that another pod has is known at once; other errors may be
// of the moment, and must come again.
func (f *Fleet) blamed(s *state, message string, count int) *left {
	found := -1
	rest := ""
	for k := range f.Networks {
		_, after, ok := strings.Cut(message, fmt.Sprintf("error adding container to network %q: ", f.Networks[k].Config))
		if !ok || s.member.missing[k]+s.member.broken[k] != "" {
			continue
		}
		if found >= 0 {
			return nil // two networks have one name
		}
		found, rest = k, after
	}
	if found < 0 {
		return nil
	}
	if m := lentTo.FindStringSubmatch(rest); m != nil {
		if strings.HasPrefix(m[1], "pod "+f.Namespace+"/rail-verify-"+f.run) {
			return nil // the pod of the try before
		}
		return &left{rail: found, why: "in use by " + m[1]}
	}
	if count < 2 {
		return nil
	}
	return &left{rail: found, why: fmt.Sprintf("its network %s cannot be attached: %s", &f.Networks[found], brief(rest)), defect: true}
}

// leaveOut begins the try of a member without a rail. It returns nil if no rail remains.
func (f *Fleet) leaveOut(s *state) *state {
	m := s.member
	if s.failed = true; s.without.defect {
		m.broken[s.without.rail] = s.without.why
	} else {
		m.missing[s.without.rail] = s.without.why
	}
	if len(m.missing)+len(m.broken) == len(f.Networks) {
		return nil // s.why says of the last rail why not
	}
	m.try++
	return f.begin(m)
}

// replace removes the Job of a try, and makes that of the member's next one.
func (f *Fleet) replace(ctx context.Context, s *state) error {
	if err := f.Client.DeleteWithDependents(ctx, f.jobs(), s.job); err != nil && !kube.IsNotFound(err) {
		return err
	}
	if err := f.gone(ctx, s); err != nil {
		return err
	}
	return f.create(ctx, s.member)
}

// gone waits until the pod of a try is gone: it may hold the other rails for a moment.
func (f *Fleet) gone(ctx context.Context, s *state) error {
	for range int(removalTime / look) {
		pods, err := f.pods(ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(pods, func(p podObject) bool { return strings.HasPrefix(p.Metadata.Name, s.job+"-") }) {
			return nil
		}
		if err := wait.For(ctx, look); err != nil {
			return err
		}
	}
	return errors.New("the pod that could not start does not end: " + s.job)
}
