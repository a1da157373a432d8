package component

import (
	"context"
	"log/slog"
)

// Notice is a message to a person about the node.
type Notice struct {
	Reason  string // one word in CamelCase
	Summary string // the message in the log; a constant phrase
	Message string // what happened to which object, for a person
	Warning bool   // true if something is wrong, false if it is right again
}

// Write logs the notice. args are further attributes in the form that slog.Logger.Log takes.
func (n Notice) Write(log *slog.Logger, args ...any) {
	level := slog.LevelInfo
	if n.Warning {
		level = slog.LevelWarn
	}
	log.Log(context.Background(), level, n.Summary, append([]any{"reason", n.Reason, "message", n.Message}, args...)...)
}
