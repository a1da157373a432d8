package document

import "github.com/containernetworking/cni/pkg/types"

// Attachments are the attachments that GC must keep.
type Attachments struct {
	// ValidAttachments are the attachments that GC must keep. nil means that
	// the runtime did not send a list; an empty list means none.
	ValidAttachments *[]types.GCAttachment `json:"cni.dev/valid-attachments,omitempty"`
	// LegacyAttachments is the same list under the misspelled key that libcni also sends.
	LegacyAttachments *[]types.GCAttachment `json:"cni.dev/attachments,omitempty"`
}

// Valid returns the attachments that GC must keep, and reports whether the runtime
// sent a list at all.
func (a *Attachments) Valid() ([]types.GCAttachment, bool) {
	for _, list := range []*[]types.GCAttachment{a.ValidAttachments, a.LegacyAttachments} {
		if list != nil {
			return *list, true
		}
	}
	return nil, false
}
