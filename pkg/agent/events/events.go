package events

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// eventTime is the time limit for all tries to send one Event.
const eventTime = time.Minute

// maxMessage is the API's limit for an Event's message, in bytes.
const maxMessage = 1024

// Recorder sends notices to the API server, as Events of the node.
type Recorder struct {
	client *kube.Client
	node   string
	log    *slog.Logger
	queue  chan component.Notice
}

// New returns a recorder. It sends nothing until [Recorder.Run] runs.
func New(client *kube.Client, node string, log *slog.Logger) *Recorder {
	return &Recorder{client: client, node: node, log: log, queue: make(chan component.Notice, 100)}
}

// Notify puts a notice into the queue. It can be used as agent.Options.Notify. It does not block.
// If the server cannot be reached for a long time, some notices are lost, but the log has them.
func (r *Recorder) Notify(n component.Notice) {
	select {
	case r.queue <- n:
	default:
	}
}

// Run sends the notices until ctx ends.
func (r *Recorder) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-r.queue:
			r.send(ctx, n)
		}
	}
}

func (r *Recorder) send(ctx context.Context, n component.Notice) {
	bounded, cancel := context.WithTimeout(ctx, eventTime)
	defer cancel()
	_, err := r.client.Create(bounded, kube.Resource{Version: "v1", Plural: "events", Namespace: "default"}, r.event(n, time.Now().UTC()))
	if err != nil && ctx.Err() == nil && !kube.IsAlreadyExists(err) {
		r.log.Warn("cannot send the Event", "reason", n.Reason, "err", err)
	}
}

// event returns an Event in the form that the kubelet uses for Events about its node. The Event is
// in the namespace default and has the node's name as UID, because kubectl looks for such Events.
func (r *Recorder) event(n component.Notice, now time.Time) map[string]any {
	kind := "Normal"
	if n.Warning {
		kind = "Warning"
	}
	message := n.Message
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage-len("…")], "") + "…"
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata":       map[string]any{"name": fmt.Sprintf("%s.%x", r.node, now.UnixNano()), "namespace": "default"},
		"involvedObject": map[string]any{"kind": "Node", "name": r.node, "uid": r.node},
		"reason":         n.Reason, "message": message, "type": kind, "count": 1,
		"source":         map[string]any{"component": "rail-agent", "host": r.node},
		"firstTimestamp": now.Format(time.RFC3339), "lastTimestamp": now.Format(time.RFC3339),
		"reportingComponent": "rail-agent", "reportingInstance": r.node,
	}
}
