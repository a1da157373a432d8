package component

import (
	"context"
	"log/slog"
)

// Notice is a message to a person about the node.
type Notice struct {
	Reason  string // one word in CamelCase
	Summary string // the log's message: a constant phrase
	Message string // what happened to which object, for a person
	Warning bool   // something is wrong; else it is right again
}

// Write logs the notice, with more attributes in args, as slog.Logger.Log takes
// them.
func (n Notice) Write(log *slog.Logger, args ...any) {
	level := slog.LevelInfo
	if n.Warning {
		level = slog.LevelWarn
	}
	log.Log(context.Background(), level, n.Summary, append([]any{"reason", n.Reason, "message", n.Message}, args...)...)
}
