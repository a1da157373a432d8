package records

import (
	"testing"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

func TestAttachmentThatIsJustMadeOrEndedIsNotJudged(t *testing.T) {
	fine := fact.Attachment{ContainerID: "a", IfName: "net1", Alive: true, InPod: true}
	lost, dead := fine, fine
	lost.InPod, dead.Alive = false, false
	for name, c := range map[string]struct {
		reads []fact.Attachment // the last one again and again
		want  int               // attachments
		alive bool
	}{
		"fine":             {[]fact.Attachment{fine}, 1, true},
		"just being lent":  {[]fact.Attachment{lost, fine}, 1, true},
		"dead":             {[]fact.Attachment{dead, dead}, 1, false},
		"just being ended": {[]fact.Attachment{dead, {}}, 0, false},
	} {
		reads := 0
		found, err := Settled(t.Context(), func() ([]fact.Attachment, error) {
			a := c.reads[min(reads, len(c.reads)-1)]
			reads++
			if a.IfName == "" {
				return nil, nil
			}
			return []fact.Attachment{a}, nil
		})
		if err != nil || len(found) != c.want || c.want > 0 && found[0].Alive != c.alive {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
	}

	// Other pods begin again and again. Only problems that last may be reported.
	reads := 0
	found, err := Settled(t.Context(), func() ([]fact.Attachment, error) {
		reads++
		other := lost
		other.ContainerID = string(rune('a' + reads))
		return []fact.Attachment{dead, other, fine}, nil
	})
	if err != nil || len(found) != 2 || found[0].Alive || !found[1].InPod {
		t.Errorf("%+v, %v", found, err)
	}
}
