package plugin

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rail-cni/rail-cni/pkg/safepath"
)

// callLog writes a call's log to the configured file. The runtime gets errors
// on stdout and needs no second copy on stderr.
type callLog struct {
	*slog.Logger
	began time.Time
}

// levels maps whereabouts' names of log levels to levels of slog. "panic" is whereabouts'
// quietest level: at that level this log is empty.
var levels = map[string]slog.Level{
	"debug": slog.LevelDebug, "verbose": slog.LevelInfo, "error": slog.LevelError, "panic": slog.LevelError + 4,
}

// openLog starts the call's log and returns a function that ends it. A failure
// of the log does not fail the call.
func (c *call) openLog(verb string) func() {
	to := io.Discard
	closeLog := func() {}
	level := slog.LevelError
	if c.conf != nil && c.conf.LogFile != "" {
		if l, ok := levels[strings.ToLower(c.conf.LogLevel)]; ok {
			level = l
		}
		f, err := openLogFile(c.conf.LogFile)
		if err == nil {
			to, closeLog = f, func() { _ = f.Close() }
		}
		c.conf.Unlogged = err
	}
	if c.conf != nil && c.conf.Unlogged != nil {
		to, level = c.Stderr, max(level, slog.LevelError)
		_, _ = fmt.Fprintln(to, "whereabouts: log_file is unusable, only errors are logged, to stderr:", c.conf.Unlogged)
	}
	c.log = &callLog{
		Logger: slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: level})).With(
			"verb", verb, "containerID", c.args.ContainerID, "ifname", c.args.IfName, "netns", c.args.Netns, "network", c.name()),
		began: time.Now(),
	}
	return closeLog
}

// openLogFile opens a file to append to. The file must be a regular file with an absolute
// path that belongs to the plugin's user. A FIFO would block without a reader, a relative
// path would depend on the runtime's working directory, and a link may lead to any file of
// the host.
func openLogFile(name string) (*os.File, error) {
	if !filepath.IsAbs(name) {
		return nil, fmt.Errorf("log_file %q is not an absolute path", name)
	}
	if err := safepath.CheckExceptGroups(filepath.Dir(name)); err != nil {
		return nil, fmt.Errorf("log_file: %w", err)
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("log_file %s is not a regular file but %s", name, info.Mode().Type())
	}
	if err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok && (int(st.Uid) != os.Geteuid() || st.Nlink != 1) {
			err = fmt.Errorf("log_file %s is not this plugin's own file: it belongs to user %d and has %d names", name, st.Uid, st.Nlink)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// logEnd writes the outcome of the call.
func (c *call) logEnd(err error) {
	took := time.Since(c.log.began)
	if err != nil {
		c.log.Error("call has failed", "error", err, "took", took)
		return
	}
	c.log.Info("call is done", "took", took)
}

// warn writes a warning about a call that succeeds to the log, and to stderr,
// which runtimes keep.
func (c *call) warn(what string, err error) {
	c.log.Warn(what, "error", err)
	_, _ = io.WriteString(c.Stderr, "whereabouts: "+what+": "+err.Error()+"\n")
}
