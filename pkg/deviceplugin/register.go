package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	kubelet "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/deviceplugin/kubeletdir"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

const (
	// registerTime bounds a registration, in which the kubelet connects to the server.
	registerTime = 15 * time.Second
	// watchTime is how long the kubelet may take to watch the devices after a registration.
	watchTime = 5 * time.Second
	// The pause between tries to register doubles from firstTry to lastTry. A notice about the
	// kubelet's socket ends the pause.
	firstTry = 50 * time.Millisecond
	lastTry  = 5 * time.Second
	// foreignCheck is the time between searches for another device plugin that serves the resource.
	foreignCheck = 30 * time.Second
)

// way is a way to register a server.
type way int

const (
	wayNone way = iota // the kubelet has neither of the two directories
	// waySelf calls the kubelet at its socket. That takes milliseconds, and is repeated whenever
	// the kubelet has dropped the server. waySelf is preferred.
	waySelf
	// wayRegistry has the socket in the directory that the kubelet watches. The kubelet registers
	// the socket when it chooses, and never twice.
	wayRegistry
)

// way returns how to register, and the path of the socket. Only one way is used: if there were two
// connections, the end of either would end both (plugin/v1beta1/server.go, runClient).
func (s *server) way() (way, string) {
	dir := s.plugin.KubeletDir
	switch {
	case kubeletdir.InodeOf(filepath.Join(dir, kubeletdir.PluginsDir)) != kubeletdir.Inode{}:
		return waySelf, s.socket
	case kubeletdir.InodeOf(filepath.Join(dir, kubeletdir.RegistryDir)) != kubeletdir.Inode{}:
		// The name is always the same: when a socket of a resource is removed, the kubelet ends the
		// registration of that resource, whichever socket it used.
		return wayRegistry, filepath.Join(dir, kubeletdir.RegistryDir, resource.OwnRegistrySocket+resource.FileName(s.resource)+"-reg.sock")
	}
	return wayNone, ""
}

var (
	errSocketGone = errors.New("the socket must be made again")
	errTaken      = errors.New("another device plugin has ended")
)

// keepRegistered registers the server whenever the kubelet does not watch it. It returns when the
// socket is gone.
func (s *server) keepRegistered(ctx context.Context, way way, path string, made kubeletdir.Inode) error {
	pause := component.Backoff{First: firstTry, Last: lastTry}
	registered, fresh := s.plugin.Now(), true
	for ctx.Err() == nil {
		if kubeletdir.InodeOf(path) != made {
			return errSocketGone
		}
		now, was := s.plugin.Now(), s.isTaken()
		if s.findOthers(ctx) != "" {
			s.pause(ctx, foreignCheck)
			continue
		}
		if was { // the end of the other plugin has ended our registration, though the kubelet still watches
			return errTaken
		}
		idle, ended := s.idle(registered, now)
		switch {
		case !idle && !fresh:
			pause.Reset()
			s.pause(ctx, s.plugin.Interval)
			continue
		case way == wayRegistry && ended && idle:
			return errSocketGone // the kubelet registers only new sockets
		case way == waySelf:
			if err := s.register(ctx); err != nil {
				s.plugin.Log.Debug("cannot register the resource with the kubelet", "resource", s.resource, "err", err)
				break
			}
			registered, fresh = now, false
			s.plugin.Log.Info("resource is registered with the kubelet", "resource", s.resource)
			s.pause(ctx, watchTime)
			continue
		}
		fresh = fresh && way == waySelf
		s.pause(ctx, pause.Next())
	}
	return nil
}

// idle reports whether the kubelet does not watch, although it has had enough time since the
// registration. ended reports whether it has watched since the registration.
func (s *server) idle(registered, now time.Time) (idle, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ended = !s.watched.Before(registered)
	return s.watchers == 0 && (ended || now.Sub(registered) >= watchTime), ended
}

// register calls the kubelet.
func (s *server) register(ctx context.Context) error {
	conn, err := kubeletdir.Connect(filepath.Join(s.plugin.KubeletDir, kubeletdir.Socket))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, registerTime)
	defer cancel()
	_, err = kubelet.NewRegistrationClient(conn).Register(ctx, &kubelet.RegisterRequest{
		Version: kubelet.Version, Endpoint: filepath.Base(s.socket), ResourceName: s.resource, Options: options(),
	})
	return err
}

// findOthers returns the socket of another device plugin that serves the resource, or "" if there
// is none. It reports a change.
func (s *server) findOthers(ctx context.Context) string {
	who := s.plugin.others.Serving(ctx, s.resource)
	if who == "" {
		who = s.findHidden(ctx)
	}
	s.mu.Lock()
	before := s.taken
	s.taken = who
	s.mu.Unlock()
	switch {
	case who != "" && before == "":
		s.plugin.reporter.Report(component.Notice{
			Reason: "ResourceTaken", Summary: "resource is served by another device plugin", Message: takenMessage(s.resource, who), Warning: true,
		}, "resource", s.resource)
	case who == "" && before != "":
		s.plugin.reporter.Report(component.Notice{
			Reason: "ResourceServed", Summary: "resource is served by rail-agent", Message: s.resource + " is served by rail-agent", Warning: false,
		}, "resource", s.resource)
	}
	return who
}

func (s *server) isTaken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken != ""
}

// findHidden returns the socket, below the kubelet's directory, of another device plugin whose
// devices the kubelet has for this resource. It returns "" if there is none. The kubelet's
// checkpoint alone proves nothing, because it may have devices of a plugin that has ended.
func (s *server) findHidden(ctx context.Context) string {
	p, now := s.plugin, s.plugin.Now()
	s.mu.Lock()
	hidden := s.hidden
	// The kubelet writes our list a moment after we have sent it.
	due := now.Sub(s.searched) >= foreignCheck && now.Sub(s.watched) > watchTime
	s.mu.Unlock()
	if hidden != "" && kubeletdir.Answers(filepath.Join(p.KubeletDir, hidden)) {
		return hidden
	}
	hidden = ""
	if due {
		if saved, err := kubeletdir.ReadCheckpoint(p.KubeletDir); err == nil {
			s.mu.Lock()
			ids := saved.Replaced(s.resource, s.sent)
			s.mu.Unlock()
			hidden = p.others.Lister(ctx, ids)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hidden = hidden
	if due {
		s.searched = now
	}
	return hidden
}

// takenMessage returns a message for a person: who serves the resource, and what to do.
func takenMessage(resource, who string) string {
	return fmt.Sprintf(`%s is served by another device plugin, %s, so rail-agent does not register the resource. "railctl migrate devices" prints how to move to rail-agent: `+
		"apply what it prints and remove the other device plugin. Then rail-agent registers the resource within a minute", resource, who)
}
