package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/agent"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// eventTime is how long the server is tried for one Event.
const eventTime = time.Minute

// longest is what the API takes as an Event's message, in bytes.
const longest = 1024

// events are core/v1 Events of the node: `kubectl describe node` shows them.
type events struct {
	client *kube.Client
	node   string
	log    *slog.Logger
	queue  chan agent.Notice
}

func newEvents(client *kube.Client, node string, log *slog.Logger) *events {
	return &events{client: client, node: node, log: log, queue: make(chan agent.Notice, 100)}
}

// Tell implements agent.Teller. With the server away for long some are lost;
// the log has them.
func (e *events) Tell(n agent.Notice) {
	select {
	case e.queue <- n:
	default:
	}
}

// run sends what is told until ctx ends.
func (e *events) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-e.queue:
			bounded, cancel := context.WithTimeout(ctx, eventTime)
			_, err := e.client.Create(bounded, kube.Resource{Version: "v1", Plural: "events", Namespace: "default"}, e.event(n, time.Now().UTC()))
			cancel()
			if err != nil && ctx.Err() == nil && !kube.Exists(err) {
				e.log.Warn("no Event", "reason", n.Reason, "err", err)
			}
		}
	}
}

// event makes the object, as the kubelet makes those of its node: in the
// namespace default, and with the node's name as its UID, by which kubectl finds
// them.
func (e *events) event(n agent.Notice, at time.Time) map[string]any {
	kind := "Normal"
	if n.Warning {
		kind = "Warning"
	}
	message := n.Message
	if len(message) > longest {
		message = strings.ToValidUTF8(message[:longest-len("…")], "") + "…"
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata":       map[string]any{"name": fmt.Sprintf("%s.%x", e.node, at.UnixNano()), "namespace": "default"},
		"involvedObject": map[string]any{"kind": "Node", "name": e.node, "uid": e.node},
		"reason":         n.Reason, "message": message, "type": kind, "count": 1,
		"source":         map[string]any{"component": "rail-agent", "host": e.node},
		"firstTimestamp": at.Format(time.RFC3339), "lastTimestamp": at.Format(time.RFC3339),
		"reportingComponent": "rail-agent", "reportingInstance": e.node,
	}
}
