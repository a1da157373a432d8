package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

var errNotChecked = errors.New("not checked yet")

// Uninstaller removes the plugins of a node as soon as no pod needs them.
type Uninstaller struct {
	Plugins
	InUse  func() []string        // returns the users of the plugins
	Force  bool                   // do not wait for users
	Stop   func()                 // stops the component that installs files, and waits until it has ended
	Notify func(component.Notice) // is called whenever the remaining work changes

	took bool // true after the plugins were removed and not restored

	mu    sync.Mutex
	known bool   // true after the first check
	left  string // the remaining work, "" when it is done
}

const (
	pollPause = 2 * time.Second
	// lastCalls is the longest time that a plugin call can take until it has written its record, if
	// it began before the plugin was removed.
	lastCalls = 2 * time.Second
)

// Run uninstalls the plugins. It returns when it is done, or when ctx ends.
func (u *Uninstaller) Run(ctx context.Context) {
	for ctx.Err() == nil {
		left := u.try(ctx)
		if u.set(left) {
			if left == "" {
				u.Notify(component.Notice{Reason: "Uninstalled", Summary: "plugins were uninstalled", Message: "rail-cni's plugins are removed from this node, and the earlier files are restored"})
				return
			}
			u.Notify(component.Notice{Reason: "NotUninstalled", Summary: "cannot uninstall the plugins yet", Message: left, Warning: true})
		}
		_ = wait.For(ctx, pollPause) // the loop checks ctx
	}
}

// try uninstalls the plugins if they are not in use. It returns the remaining work, or "" if it is
// done.
func (u *Uninstaller) try(ctx context.Context) string {
	inUse := func() string {
		if pods := u.InUse(); len(pods) > 0 && !u.Force {
			return "the plugins stay while they are needed: " + strings.Join(pods, "; ")
		}
		return ""
	}
	back := func(left string) string {
		errs := errorTexts(u.Put(context.WithoutCancel(ctx), nobody)) // without cancellation, because a pod needs the plugins even if the agent ends
		u.took = len(errs) > 0
		return strings.Join(append([]string{left}, errs...), "; ")
	}
	if left := inUse(); left != "" {
		if u.took || u.broken() {
			return back(left)
		}
		return left
	}
	u.took = true
	if err := remove(u.Record, u.Log, isPlugin); err != nil {
		return err.Error()
	}
	_ = wait.For(ctx, lastCalls)
	if left := inUse(); left != "" { // a pod came at the last moment
		return back(left)
	}
	u.Stop()
	return strings.Join(errorTexts(remove(u.Record, u.Log, func(string) bool { return true })), "; ")
}

// broken reports whether an earlier process was killed after it had removed the plugins and before
// it had removed the other files.
func (u *Uninstaller) broken() bool {
	entries, err := u.Record.Entries()
	return err == nil && len(entries) > 0 && !slices.ContainsFunc(entries, func(e *install.Entry) bool { return isPlugin(e.Path) })
}

// nobody is an inUse that returns no users.
func nobody() []string { return nil }

func errorTexts(err error) []string {
	if err == nil {
		return nil
	}
	return []string{err.Error()}
}

func (u *Uninstaller) set(left string) (changed bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	changed = !u.known || u.left != left
	u.known, u.left = true, left
	return changed
}

// Ready returns the remaining work as an error. It returns nil when the work is done.
func (u *Uninstaller) Ready() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case !u.known:
		return errNotChecked
	case u.left != "":
		return errors.New(u.left)
	}
	return nil
}
