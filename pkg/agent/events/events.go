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

// eventTime bounds the tries to send one Event.
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

// New returns a recorder, which sends nothing until [Recorder.Run] runs.
func New(client *kube.Client, node string, log *slog.Logger) *Recorder {
	return &Recorder{client: client, node: node, log: log, queue: make(chan component.Notice, 100)}
}

// Notify queues a notice, for agent.Options.Notify and the like. It does not block: if the
// server is away for long some notices are lost; the log has them.
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

// event returns the Event in the form of the kubelet's about its node: in the
// namespace default, and with the node's name as UID, by which kubectl finds
// it.
func (r *Recorder) event(n component.Notice, at time.Time) map[string]any {
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
		"metadata":       map[string]any{"name": fmt.Sprintf("%s.%x", r.node, at.UnixNano()), "namespace": "default"},
		"involvedObject": map[string]any{"kind": "Node", "name": r.node, "uid": r.node},
		"reason":         n.Reason, "message": message, "type": kind, "count": 1,
		"source":         map[string]any{"component": "rail-agent", "host": r.node},
		"firstTimestamp": at.Format(time.RFC3339), "lastTimestamp": at.Format(time.RFC3339),
		"reportingComponent": "rail-agent", "reportingInstance": r.node,
	}
}
