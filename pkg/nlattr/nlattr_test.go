package nlattr

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func attr(typ uint16, value ...byte) Attr { return Attr{Type: typ, Value: value} }

func message(header []byte, attrs ...Attr) []byte { return Marshal(header, attrs) }

var header = []byte{unix.AF_INET, 16, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0}

func TestMessageRoundTrip(t *testing.T) {
	want := message(header, attr(1, 10, 0, 0, 0), attr(99, 1), attr(98), attr(97, 1, 2, 3, 4, 5),
		Attr{Type: 8, Flags: unix.NLA_F_NESTED, Value: []byte{8, 0, 2, 0, 1, 0, 0, 0}})
	h, attrs, err := ParseMessage(want, len(header))
	if err != nil || len(attrs) != 5 {
		t.Fatalf("%d attributes, %v", len(attrs), err)
	}
	if got := Marshal(h, attrs); !bytes.Equal(got, want) {
		t.Errorf("came back as\n%x, was\n%x", got, want)
	}
	if v, ok := attrs.Get(8); !ok || len(v) != 8 {
		t.Errorf("the nested attribute: %x, %v", v, ok)
	}
	if nested, err := attrs.Nested(8); err != nil || len(nested) != 1 || nested[0].Type != 2 {
		t.Errorf("what is in it: %v, %v", nested, err)
	}
	if left := attrs.Without(8, 98); len(left) != 3 {
		t.Errorf("without two of five: %v", left)
	}
}

func TestValues(t *testing.T) {
	attrs := Attrs{
		attr(1, 200), attr(2, binary.NativeEndian.AppendUint16(nil, 300)...), attr(3, binary.NativeEndian.AppendUint32(nil, 70000)...),
		attr(4, binary.NativeEndian.AppendUint64(nil, 1<<40)...), attr(5, 1, 2, 3), attr(6, []byte("net1\x00junk")...), attr(3, 0, 0, 0, 0),
	}
	for typ, want := range map[uint16]struct {
		number    uint64
		any, is32 bool
	}{
		1: {200, true, false}, 2: {300, true, false}, 3: {70000, true, true}, 4: {1 << 40, true, false}, 5: {}, 9: {},
	} {
		n, ok := attrs.Uint(typ)
		if n != want.number || ok != want.any {
			t.Errorf("type %d: %d, %v", typ, n, ok)
		}
		if n, ok := attrs.Uint32(typ); ok != want.is32 || ok && uint64(n) != want.number {
			t.Errorf("type %d as 32 bits: %d, %v", typ, n, ok)
		}
	}
	if text := attrs.Text(6) + attrs.Text(9); text != "net1" {
		t.Errorf("text %q", text)
	}
}

func TestDamageIsAnErrorAndWhatComesBeforeIsRead(t *testing.T) {
	whole := message(header, attr(1, 10, 0, 0, 0))
	for name, c := range map[string]struct {
		m     []byte
		attrs int
	}{
		"nothing":                              {nil, 0},
		"half a header":                        {header[:7], 0},
		"an attribute shorter than itself":     {append(slices.Clone(whole), 3, 0, 1, 0), 1},
		"an attribute longer than the message": {append(slices.Clone(whole), 9, 0, 1, 0, 1, 2, 3, 4), 1},
	} {
		_, attrs, err := ParseMessage(c.m, len(header))
		if err == nil || len(attrs) != c.attrs {
			t.Errorf("%s: %d attributes, error %v", name, len(attrs), err)
		}
	}
	// The padding after the last attribute may be missing.
	if attrs, err := Parse([]byte{5, 0, 1, 0, 9}); err != nil || len(attrs) != 1 {
		t.Errorf("%v, error %v", attrs, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte{}, uint8(8))
	f.Add(message(header, attr(1, 10, 0, 0, 0), attr(4, 7, 0, 0, 0)), uint8(12))
	f.Add(message(header, Attr{Type: 8, Flags: unix.NLA_F_NESTED, Value: message(nil, attr(2, 1, 0, 0, 0))}), uint8(12))
	f.Add(append(make([]byte, 12), 5, 0, 1, 0, 1), uint8(12))
	f.Add([]byte{1, 2, 3, 4, 5, 6}, uint8(5))
	f.Fuzz(func(t *testing.T, m []byte, size uint8) {
		header, attrs, err := ParseMessage(m, int(size))
		for _, a := range attrs {
			_, _ = attrs.Uint(a.Type)
			_, _ = attrs.Uint32(a.Type)
			_ = attrs.Text(a.Type)
			_, _ = attrs.Nested(a.Type)
			if len(attrs.Without(a.Type)) >= len(attrs) {
				t.Fatalf("%x: without %d nothing is missing", m, a.Type)
			}
		}
		if err != nil {
			return
		}
		// Parsed attributes keep their meaning.
		again := Marshal(header, attrs)
		h, a, err := ParseMessage(again, int(size))
		if err != nil || !bytes.Equal(h, header) || len(a) != len(attrs) {
			t.Fatalf("%x was read, but its copy %x was not: %v", m, again, err)
		}
		for i := range a {
			if a[i].Type != attrs[i].Type || a[i].Flags != attrs[i].Flags || !bytes.Equal(a[i].Value, attrs[i].Value) {
				t.Fatalf("attribute %d: %+v became %+v", i, attrs[i], a[i])
			}
		}
	})
}
