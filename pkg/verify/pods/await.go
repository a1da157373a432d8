package pods

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// podObject has the fields of a pod that are read.
type podObject struct {
	Metadata struct {
		kube.Meta
		Owners []struct {
			UID        string `json:"uid"`
			Controller bool   `json:"controller"`
		} `json:"ownerReferences"`
	} `json:"metadata"`
	Status struct {
		Phase      string            `json:"phase"`
		Reason     string            `json:"reason"`
		Message    string            `json:"message"`
		Conditions []condition       `json:"conditions"`
		Containers []containerStatus `json:"containerStatuses"`
		Init       []containerStatus `json:"initContainerStatuses"`
	} `json:"status"`
}

type containerStatus struct {
	Name  string `json:"name"`
	Image string `json:"image"`
	State struct {
		Running    *struct{} `json:"running"`
		Waiting    *reason   `json:"waiting"`
		Terminated *reason   `json:"terminated"`
	} `json:"state"`
}

type reason struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

func (r reason) String() string { return brief(strings.TrimSpace(r.Reason + " " + r.Message)) }

// ofImage reports whether the reason is that the image of the container cannot be pulled.
func (r *reason) ofImage() bool {
	return r != nil && slices.Contains([]string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable"}, r.Reason)
}

// maxReason is the maximum length, in bytes, of a message that is kept.
const maxReason = 1 << 10

// brief returns a message, cut to maxReason bytes.
func brief(s string) string {
	if len(s) > maxReason {
		return strings.ToValidUTF8(s[:maxReason], "") + " …"
	}
	return s
}

// madeBy reports whether the Job of the try s has made the pod. The labels alone do not prove this,
// because anybody can set them on a pod.
func (p *podObject) madeBy(s *state) bool {
	for _, o := range p.Metadata.Owners {
		if o.Controller {
			return s.uid != "" && o.UID == s.uid
		}
	}
	return false
}

// state returns the try to which the pod belongs. It returns nil if the pod does not belong to the
// run.
func (f *Fleet) state(p *podObject) *state {
	if s := f.states[p.Metadata.Labels[nodeLabel]]; s != nil && s.renewed == nil && p.madeBy(s) {
		return s
	}
	return nil
}

// ownPods returns the pods of the run that exist now.
func (f *Fleet) ownPods(ctx context.Context) ([]podObject, error) {
	found, err := f.pods(ctx, "")
	return slices.DeleteFunc(found, func(p podObject) bool { return f.state(&p) == nil }), err
}

// pods returns the pods that have the label of the run. If job is not "", it returns only the pods
// of this Job.
func (f *Fleet) pods(ctx context.Context, job string) ([]podObject, error) {
	labels := runLabel + "=" + f.run
	if job != "" {
		labels += ",job-name=" + job // Kubernetes adds this label to the pods of Jobs
	}
	var found []podObject
	_, err := f.Client.List(ctx, podsIn(f.Namespace), kube.ListOptions{LabelSelector: labels}, func(item []byte) error {
		var p podObject
		if err := json.Unmarshal(item, &p); err != nil {
			return err
		}
		found = append(found, p)
		return nil
	})
	return found, err
}

// await attaches to each pod as soon as the pod runs. It returns when no pod is waited for any
// longer.
func (f *Fleet) await(ctx context.Context) error {
	// Jobs are made again concurrently, so that this loop can attach to the pods of other nodes in
	// the meantime.
	var renewals sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	renew, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		renewals.Wait()
		f.takeRenewed()
	}()
	last := time.Now().Add(maxWithin * f.Within)
	for looked := time.Now(); ; {
		pods, err := f.ownPods(ctx)
		if err != nil {
			return err
		}
		for i := range pods {
			if s := f.state(&pods[i]); s.waits() {
				f.note(ctx, s, &pods[i])
			}
		}
		f.takeRenewed()
		waiting := f.waiting()
		if len(waiting) > 0 && time.Since(looked) > eventsPause {
			f.readEvents(ctx, waiting, pods)
			for _, s := range waiting {
				if s.without != nil {
					next := f.leaveOut(s)
					renewals.Go(func() {
						slots <- struct{}{}
						defer func() { <-slots }()
						next.renewed <- f.replace(renew, s, next)
					})
				}
			}
			waiting, looked = f.waiting(), time.Now()
		}
		if f.Done != nil {
			f.Done(len(f.members)-len(waiting), len(f.members))
		}
		if len(waiting) == 0 {
			return nil
		}
		for _, s := range waiting {
			if now := time.Now(); now.After(s.until) || now.After(last) {
				s.failed, s.why = true, fmt.Sprintf("its pod%s does not run after %s: %s; %s", s.pod, f.Within, s.why, cmp.Or(s.cure, "raise --start-timeout, or leave the node out with --nodes"))
			}
		}
		if err := wait.For(ctx, pollPause); err != nil {
			return err
		}
	}
}

// waits reports whether the pod does not run yet, but may still begin to run.
func (s *state) waits() bool { return s.session == nil && !s.failed }

// waiting returns the states whose pods do not run yet, but may still begin to run.
func (f *Fleet) waiting() (all []*state) {
	for _, m := range f.members {
		if s := f.states[m.label()]; s.waits() {
			all = append(all, s)
		}
	}
	return all
}

// note stores in s what the status of the pod p says.
func (f *Fleet) note(ctx context.Context, s *state, p *podObject) {
	if p.Status.Phase == "Failed" || p.Status.Phase == "Succeeded" {
		s.failed, s.why = true, fmt.Sprintf("its pod %s/%s has ended: %s", f.Namespace, p.Metadata.Name, reason{p.Status.Reason, p.Status.Message})
	}
	s.pod, s.cure = fmt.Sprintf(" %s/%s", p.Metadata.Namespace, p.Metadata.Name), ""
	for _, c := range p.Status.Conditions {
		if c.Type == "PodScheduled" && c.Status == "False" {
			s.why, s.cure = reason{c.Reason, c.Message}.String(), "make room for it on the node, or leave the node out with --nodes"
		}
	}
	for _, c := range slices.Concat(p.Status.Init, p.Status.Containers) {
		if c.State.Waiting.ofImage() {
			s.why = fmt.Sprintf("the image %s: %s", brief(c.Image), c.State.Waiting)
			s.cure = "name an image that the node has or can pull with --image or --rdma-image"
			return
		}
	}
	for _, c := range p.Status.Containers {
		switch {
		case c.Name != container: // this container was added to the pod by somebody else
		case c.State.Running != nil:
			s.session = attach(ctx, f.Client, f.Namespace, p.Metadata.Name)
		case c.State.Terminated != nil:
			s.failed, s.why = true, fmt.Sprintf("the prober in its pod %s/%s has ended: %s", f.Namespace, p.Metadata.Name, c.State.Terminated)
		case c.State.Waiting != nil && c.State.Waiting.Reason != "ContainerCreating":
			s.why = c.State.Waiting.String()
		}
	}
}

// takeRenewed stores the outcome of Jobs that were made again.
func (f *Fleet) takeRenewed() {
	for _, s := range f.states {
		select {
		case err := <-s.renewed: // a nil channel is never ready
			s.renewed, s.until = nil, time.Now().Add(f.Within)
			if err != nil && !s.failed {
				s.failed, s.why = true, err.Error()
			}
		default:
		}
	}
}

// readEvents stores what events say about pods that do not run, and about Jobs that have no pod.
func (f *Fleet) readEvents(ctx context.Context, waiting []*state, pods []podObject) {
	each(len(waiting), func(i int) {
		s := waiting[i]
		if s.renewed != nil {
			return
		}
		about := s.job
		for k := range pods {
			if pods[k].madeBy(s) {
				about = pods[k].Metadata.Name
			}
		}
		message, count, err := f.lastWarning(ctx, about)
		if err != nil {
			message = fmt.Sprintf("the events of %s: %v", about, err)
		}
		if message == "" {
			return
		}
		if s.without = f.blamed(s, message, count); s.cure == "" || s.without != nil { // otherwise the status of the pod has a better reason
			s.why = brief(message)
		}
	})
}

// ofNetwork finds the network in an error of Multus.
var ofNetwork = regexp.MustCompile(`error adding container to network "[^"]*": `)

// lastWarning returns the last warning about an object. count is the number of warnings about the
// same network.
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

// left is a rail that is left out because the pod cannot get it.
type left struct {
	rail   int
	why    string
	defect bool
}

// lentTo finds the holder in an error of host-device.
var lentTo = regexp.MustCompile(` is lent to ((?:pod|container) [^ ,;]{1,320})`)

// blamed returns the rail whose network caused the error in an event. It returns nil if no network
// did. The errors come from Multus and from rail-cni's plugins. If another pod has the rail, one
// such event is enough. Any other error may be temporary, so it must occur again before the rail is
// left out.
func (f *Fleet) blamed(s *state, message string, count int) *left {
	found := -1
	rest := ""
	for k := range f.Networks {
		_, after, ok := strings.Cut(message, fmt.Sprintf("error adding container to network %q: ", f.Networks[k].Config))
		if !ok || s.member.missing[k]+s.member.broken[k] != "" {
			continue
		}
		if found >= 0 {
			return nil // two networks have the same name in their configurations
		}
		found, rest = k, after
	}
	if found < 0 {
		return nil
	}
	if m := lentTo.FindStringSubmatch(rest); m != nil {
		if strings.HasPrefix(m[1], "pod "+f.Namespace+"/rail-verify-"+f.run) {
			return nil // the pod of the earlier try still holds the rail
		}
		return &left{rail: found, why: "in use by " + m[1]}
	}
	if count < 2 {
		return nil
	}
	return &left{rail: found, why: fmt.Sprintf("its network %s cannot be attached: %s", &f.Networks[found], brief(rest)), defect: true}
}

// leaveOut begins the member's next try, without the rail s.without. It does not make the Job of
// the try yet.
func (f *Fleet) leaveOut(s *state) *state {
	m := s.member
	if s.failed = true; s.without.defect {
		m.broken[s.without.rail] = s.without.why
	} else {
		m.missing[s.without.rail] = s.without.why
	}
	m.try++
	next := f.begin(m)
	next.why, next.renewed = "its pod is made again: "+s.why, make(chan error, 1)
	return next
}

// replace removes the Job of the try s and makes the Job of the try next. If the rail was in use by
// another pod, further rails may be in use as well. replace leaves all of them out at once.
func (f *Fleet) replace(ctx context.Context, s, next *state) error {
	if err := f.Client.DeleteWithDependents(ctx, f.jobs(), s.job); err != nil && !kube.IsNotFound(err) {
		return err
	}
	m := s.member
	if !s.without.defect && f.Agents != nil {
		// Without the right to ask an agent, each rail in use needs another try.
		if held, err := f.Agents.attachments(ctx, m.node); err == nil {
			f.leaveOutHeld(m, held)
		}
	}
	if len(m.missing)+len(m.broken) == len(f.Networks) {
		return fmt.Errorf("no rail is left to measure: rail %d: %s", s.without.rail, s.without.why)
	}
	if err := f.gone(ctx, s); err != nil {
		return err
	}
	return f.create(ctx, next)
}

// leaveOutHeld leaves out the rails whose NICs are held by these attachments.
func (f *Fleet) leaveOutHeld(m *member, held []fact.Attachment) {
	for i := range held {
		a := &held[i]
		if strings.HasPrefix(a.Pod, f.Namespace+"/"+jobName(f.run, "")) {
			continue // the attachment belongs to the earlier try
		}
		holder := brief("container " + a.ContainerID)
		if a.Pod != "" {
			holder = brief("pod " + a.Pod)
		}
		for k := range f.Networks {
			if f.Networks[k].needs(a) && m.missing[k]+m.broken[k] == "" {
				m.missing[k] = "in use by " + holder
			}
		}
	}
}

// gone waits until the pod of a try is gone, because the pod may still hold the other rails for a
// moment.
func (f *Fleet) gone(ctx context.Context, s *state) error {
	for range int(removalTime / pollPause) {
		pods, err := f.pods(ctx, s.job)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(pods, func(p podObject) bool { return p.madeBy(s) }) {
			return nil
		}
		if err := wait.For(ctx, pollPause); err != nil {
			return err
		}
	}
	return errors.New("the pod that could not start does not end: " + s.job)
}
