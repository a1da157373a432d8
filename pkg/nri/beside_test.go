package nri

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
)

// other is an NRI plugin of another project. It does not look at what a container already has.
type other struct {
	gives func() *api.ContainerAdjustment
	asked atomic.Int64
}

func (o *other) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	o.asked.Add(1)
	return o.gives(), nil, nil
}

// beside connects the other plugin, with NRI's own library, until the test ends. The runtime asks
// plugins with a lower index first.
func (l *lab) beside(t *testing.T, index string, gives func() *api.ContainerAdjustment) {
	t.Helper()
	o := &other{gives: gives}
	s, err := stub.New(o, stub.WithPluginName("other"), stub.WithPluginIdx(index), stub.WithSocketPath(l.Socket))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Stop()
		s.Wait()
	})
	await(t, "question to the other plugin", func() bool {
		_, _ = l.create(t, &api.PodSandbox{Id: "probe"}, &api.Container{})
		return o.asked.Load() > 0
	})
}

// copyOf returns another adjustment with the same values, as if another plugin had made it.
func copyOf(t *testing.T, a *api.ContainerAdjustment) *api.ContainerAdjustment {
	t.Helper()
	text, err := a.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	c := &api.ContainerAdjustment{}
	if err := c.UnmarshalVT(text); err != nil {
		t.Fatal(err)
	}
	return c
}

// names returns the name of each thing that a container gets. If the container gets a thing twice,
// its name is returned twice.
func names(a *api.ContainerAdjustment) (list []string) {
	for _, v := range a.GetEnv() {
		list = append(list, "variable "+v.Key)
	}
	for _, m := range a.GetMounts() {
		list = append(list, "mount "+strings.TrimSuffix(m.Destination, "/"))
	}
	for _, r := range a.GetRlimits() {
		list = append(list, "limit "+r.Type)
	}
	for _, d := range a.GetLinux().GetDevices() {
		list = append(list, "device "+d.Path)
	}
	slices.Sort(list)
	return list
}

// TestWhatAnEarlierPluginGaveIsLeftOut: a runtime refuses a container if two plugins set the same
// thing, even if the values are equal.
func TestWhatAnEarlierPluginGaveIsLeftOut(t *testing.T) {
	const last = "VAR_OF_THE_OTHER"
	for name, change := range map[string]func(*api.ContainerAdjustment){
		"equal values": func(*api.ContainerAdjustment) {},
		"other values": func(a *api.ContainerAdjustment) {
			for _, v := range a.Env {
				v.Value = "of-the-other"
			}
			for _, r := range a.Rlimits {
				r.Hard, r.Soft = 1<<20, 1<<20
			}
			for _, m := range a.Mounts {
				m.Source, m.Destination = "/elsewhere", railinfo.MountPoint+"/"
			}
		},
		"some of it": func(a *api.ContainerAdjustment) {
			a.Env, a.Mounts, a.Linux.Devices = a.Env[:1], nil, a.Linux.Devices[:1]
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.hold("s")
			alone, err := l.create(t, &api.PodSandbox{Id: "s"}, &api.Container{})
			if err != nil {
				t.Fatal(err)
			}
			theirs := copyOf(t, alone)
			theirs.Env = slices.DeleteFunc(theirs.Env, func(v *api.KeyValue) bool { return v.Key == listName })
			change(theirs)
			theirs.AddEnv(last, "1")
			l.beside(t, "10", func() *api.ContainerAdjustment { return copyOf(t, theirs) })

			both, err := l.create(t, &api.PodSandbox{Id: "s"}, &api.Container{})
			if err != nil {
				t.Fatal(err)
			}
			env := of(both).env
			want := append(names(alone), "variable "+last)
			if name != "some of it" { // no variable is ours
				want = slices.DeleteFunc(want, func(s string) bool { return s == "variable "+listName })
			}
			if slices.Sort(want); !slices.Equal(names(both), want) {
				t.Errorf("it gets %v\nnot %v", names(both), want)
			}
			for _, v := range theirs.Env {
				if env[v.Key] != v.Value || slices.Contains(strings.Split(env[listName], ","), v.Key) {
					t.Errorf("%s=%s, not the earlier plugin's %s; the list of ours is %q", v.Key, env[v.Key], v.Value, env[listName])
				}
			}
			if got, want := of(both).memlock, of(theirs).memlock; !slices.Equal(got, want) {
				t.Errorf("limit %v, not %v", got, want)
			}
			if len(theirs.Mounts) > 0 && !slices.Equal(of(both).mounts, of(theirs).mounts) {
				t.Errorf("mounts %v, not %v", of(both).mounts, of(theirs).mounts)
			}
		})
	}
}

// TestContainerIsRefusedIfALaterPluginSetsTheSame checks what the guide says about a container if
// the other plugin comes later.
func TestContainerIsRefusedIfALaterPluginSetsTheSame(t *testing.T) {
	l := newLab(t)
	l.hold("s")
	l.beside(t, "95", func() *api.ContainerAdjustment {
		a := &api.ContainerAdjustment{}
		a.AddEnv("NCCL_IB_HCA", "=mlx5_0:1")
		return a
	})
	_, err := l.create(t, &api.PodSandbox{Id: "s"}, &api.Container{})
	if err == nil || !strings.Contains(err.Error(), pluginName) || !strings.Contains(err.Error(), "other") || !strings.Contains(err.Error(), "NCCL_IB_HCA") {
		t.Errorf("the runtime says %v", err)
	}
}
