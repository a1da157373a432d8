package software

import (
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/doctor/subject"
)

var ledgerRules = []rule.Rule{
	{
		ID: "LEDGER-UNREADABLE", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "Each record in the ledger can be read.",
		Consequence: "The plugins do not know which NIC and addresses the attachment has. The NIC is not returned, and the addresses are not freed.",
		Cure:        "Run railctl gc, which prints what is wrong with the record. Remove the record's file only if the NIC is back on the host.",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.Ledger == nil {
				return
			}
			records, _ := rule.Read(r, "unreadable records", f.Ledger.Unreadable)
			for range len(f.Ledger.Attachments.Value) {
				r.Judged()
			}
			for _, record := range records {
				r.Find("", "%s", record).Part(record)
			}
		},
	},
	{
		ID: "LEDGER-ORPHAN", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "Each attachment belongs to a living pod.",
		Consequence: "The NIC and the addresses of a dead pod are not free. The next pod that needs them has to wait.",
		Cure:        "Run railctl gc. It returns the NIC, or prints the reason why it cannot.",
		Check: func(f *fact.Facts, r *rule.Report) {
			subject.EachAttachment(f, r, func(a *fact.Attachment) {
				r.Judged()
				if !a.Alive && !returning(a, f.Taken) {
					r.Find(a.Object(), "the network namespace of container %.13s is gone, but the attachment still has %s (phase %s)", a.ContainerID, holds(a), a.Phase).Fix("railctl gc")
				}
			})
		},
	},
	{
		ID: "LEDGER-LOST", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "The interface of each attachment of a living pod is in the pod.",
		Consequence: "The pod runs without this rail. The NIC's driver may have been reset, or the interface may have been moved or deleted.",
		Cure:        "Search the kernel's log for a reset of the NIC. Then restart the pod.",
		Check: func(f *fact.Facts, r *rule.Report) {
			subject.EachAttachment(f, r, func(a *fact.Attachment) {
				if !a.Alive || a.Phase != "lent" || a.NIC == "" {
					return
				}
				r.Judged()
				if !a.InPod {
					r.Find(a.Object(), "%s of %s is not in the pod", a.IfName, a.NIC)
				}
			})
		},
	},
	{
		ID: "LEDGER-LENDING", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "No ADD takes longer than ten minutes.",
		Consequence: "The ADD was probably killed before it ended. Neither the host nor a pod can use the NIC.",
		Cure:        "Delete the pod. If the NIC is not back when the pod's network namespace is gone, run railctl gc. The container runtime's log says why the ADD ended.",
		Check: func(f *fact.Facts, r *rule.Report) {
			subject.EachAttachment(f, r, func(a *fact.Attachment) {
				r.Judged()
				if age := f.Taken.Sub(a.Created); a.Alive && a.Phase == "lending" && age > 10*time.Minute {
					r.Find(a.Object(), "the attachment with %s has been in phase lending for %s", holds(a), age.Truncate(time.Second))
				}
			})
		},
	},
	{
		ID: "LEDGER-CHANGED", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "Each NIC that a pod returned has the settings that it had before it was lent.",
		Consequence: "The host and the next pod get a NIC with settings that another pod made.",
		Cure:        "Restore the settings as docs/reference/returned.md describes, or reset the NIC.",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.Ledger == nil {
				return
			}
			changed, _ := rule.Read(r, "changed settings", f.Ledger.Changed)
			for range len(f.Ledger.Attachments.Value) {
				r.Judged()
			}
			for _, c := range changed {
				nic, _, _ := strings.Cut(c, ":")
				r.Find("", "%s", c).Part(nic)
			}
		},
	},
}

// returnTime is longer than any DEL waits for the driver of a NIC.
const returnTime = time.Minute

// returning reports whether a DEL may still be busy returning the NIC of a pod whose netns is gone.
func returning(a *fact.Attachment, now time.Time) bool {
	return a.Phase == "returning" && !a.Updated.IsZero() && now.Sub(a.Updated) < returnTime
}

// holds returns a text for people about what the attachment has: its NIC and its addresses.
func holds(a *fact.Attachment) string {
	var all []string
	if a.NIC != "" {
		all = append(all, a.NIC)
	}
	all = append(all, a.Addresses...)
	if len(all) == 0 {
		return a.IfName
	}
	return strings.Join(all, ", ")
}
