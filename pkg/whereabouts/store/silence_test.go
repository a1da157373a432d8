package store

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/pooltest"
)

func TestSilenceIsForgottenAfterAWhileAndByAnAnswer(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "silence", "10.0.0.0/24")
	for i, tc := range []struct {
		what  string
		since time.Duration
		obeys bool
	}{
		{"it was just now", 0, true},
		{"it was some time ago", -silentFor - time.Second, false},
		{"the clock was set back since", time.Hour, false},
	} {
		n.add(pooltest.Pod(i), c) // is answered, which ends the silence
		if why := n.Silence(); why != "" {
			t.Errorf("%s: after an ADD there is still %q", tc.what, why)
		}
		data, err := json.Marshal(silence{time.Now().Add(tc.since), "no answer"})
		if err != nil {
			t.Fatal(err)
		}
		if err := n.dir.Write(silenceFile, data); err != nil {
			t.Fatal(err)
		}
		n.del(pooltest.Pod(i), c.Pool)
		want := 0
		if tc.obeys {
			want = 1
		}
		n.wantJournal(tc.what+": after the DEL", want)
		if held := len(entries(t, c.Pool)); held != want {
			t.Errorf("%s: %d entries, want %d", tc.what, held, want)
		}
		if left, err := n.Replay(pooltest.Context(t)); left != 0 || err != nil {
			t.Errorf("%s: the journal keeps %d: %v", tc.what, left, err)
		}
	}
	if err := n.dir.Write(silenceFile, []byte("{")); err != nil {
		t.Fatal(err)
	}
	if why := n.Silence(); why != "" {
		t.Errorf("a file that cannot be read says %q", why)
	}
	wantEmpty(t, c.Pool)
}
