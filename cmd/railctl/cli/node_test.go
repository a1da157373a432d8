package cli

import (
	"bytes"
	"strings"
	"testing"
)

func TestWhatANodePrintsIsWholeCharacters(t *testing.T) {
	for _, text := range []string{"", "GPU 温度\n", "é", "cut \xe6\xb8", "\xff\xfe\n", strings.Repeat("温", 100)} {
		for step := 1; step < 5; step++ {
			var raw, shown bytes.Buffer
			plain, people := &passed{to: &raw}, &passed{to: Escaper(&shown)}
			for at := 0; at < len(text); at += step {
				part := []byte(text[at:min(len(text), at+step)])
				for _, w := range []*passed{plain, people} {
					if n, err := w.Write(part); n != len(part) || err != nil {
						t.Fatal(n, err)
					}
				}
			}
			if err := plain.end(); err != nil || raw.String() != text || plain.any != (text != "") {
				t.Errorf("%q became %q, %v", text, raw.String(), err)
			}
			if err := people.end(); err != nil || shown.String() != escaped(text) {
				t.Errorf("%q became %q, not %q: %v", text, shown.String(), escaped(text), err)
			}
		}
	}
}
