package netns

import (
	"testing"
)

func TestUnescapeMount(t *testing.T) {
	for in, want := range map[string]string{"/run/netns/x": "/run/netns/x", `/a\040b`: "/a b", `/a\134040b`: `/a\040b`, `/a\011\012\043`: "/a\t\n#"} {
		if got := unescapeMount(in); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}
