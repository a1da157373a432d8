package keeper

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

// ConditionType is the type of the condition that rail-agent writes to the Node.
const ConditionType = "RailNetworkReady"

// maxMessage is the maximum length of the condition's message, in bytes.
const maxMessage = 1024

// Condition is the condition of the Node in its JSON form (NodeCondition of core/v1).
type Condition struct {
	Type      string    `json:"type"`
	Status    string    `json:"status"` // "True", "False" or "Unknown"
	Reason    string    `json:"reason"`
	Message   string    `json:"message"`
	Heartbeat time.Time `json:"lastHeartbeatTime"`
	// Transition is the time when the status changed, or when this agent wrote the condition for
	// the first time. It is nil if the status has not changed.
	Transition *time.Time `json:"lastTransitionTime,omitempty"`
}

// conditionState is the condition that was written last.
type conditionState struct {
	written Condition
	failed  string // why the condition could not be written
}

// keepCondition writes the condition if it has changed. In runs that judge the slow rules, it
// writes the condition even if nothing has changed.
func (k *Keeper) keepCondition(ctx context.Context, slow bool) {
	if k.Condition == nil || k.runs < inARow {
		return
	}
	if k.Leaving {
		if slow { // the removal may have failed before
			k.removeCondition(ctx)
		}
		return
	}
	now := k.judged()
	was := &k.condition.written
	if !slow && now.Status == was.Status && now.Reason == was.Reason && now.Message == was.Message {
		return
	}
	now.Heartbeat = time.Now().UTC().Truncate(time.Second)
	if now.Status != was.Status {
		now.Transition = &now.Heartbeat
	}
	ctx, cancel := context.WithTimeout(ctx, patchTime)
	defer cancel()
	err := k.Condition(ctx, &now)
	switch {
	case err == nil:
		k.condition = conditionState{written: now}
	case ctx.Err() == nil || k.condition.failed == "":
		if k.condition.failed != err.Error() {
			k.Log.Warn("cannot update the Node condition", "type", ConditionType, "err", err)
		}
		k.condition.failed = err.Error()
	}
}

// judged returns the condition that follows from the results of the rules.
func (k *Keeper) judged() Condition {
	var failed, unknown []string
	for _, id := range slices.Sorted(maps.Keys(k.rules)) {
		w := k.rules[id]
		if evidence := w.failed(); evidence != "" {
			failed = append(failed, id+": "+evidence)
		}
		if w.scope == rule.NodeScope && w.unknown >= inARow && mayFail[id] {
			unknown = append(unknown, id+": "+strings.Join(w.missing, ", "))
		}
	}
	c := Condition{Type: ConditionType, Status: "True", Reason: "NoRuleFails", Message: "no rule of the doctor fails on the node"}
	switch {
	case len(failed) > 0:
		c.Status, c.Reason, c.Message = "False", "RulesFail", cut(strings.Join(failed, ". "))
	case len(unknown) > 0:
		c.Status, c.Reason, c.Message = "Unknown", "FactsMissing", cut(strings.Join(unknown, ". "))
	}
	return c
}

// mayFail is true for the ID of each rule whose findings are failures and not only warnings. The
// condition depends only on these rules.
var mayFail = func() map[string]bool {
	ids := map[string]bool{}
	for _, r := range doctor.Rules() {
		ids[r.ID] = r.Severity == rule.Fail
	}
	return ids
}()

// removeTime is the time limit of the request that removes the condition when the agent ends.
const removeTime = 5 * time.Second

// removeCondition removes the condition. It works even if ctx has already ended.
func (k *Keeper) removeCondition(ctx context.Context) {
	if k.Condition == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	if err := k.Condition(ctx, nil); err != nil {
		k.Log.Warn("cannot remove the Node condition", "type", ConditionType, "err", err)
	}
}

// cut returns text, shortened to at most maxMessage bytes.
func cut(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	const rest = " …"
	text = text[:maxMessage-len(rest)]
	for !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return text + rest
}
