package statefile

import (
	"errors"
	"io/fs"
	"testing"
)

func TestAPostedFileIsHeldWhileItsPosterLives(t *testing.T) {
	d, err := Open(t.TempDir() + "/d")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	l, err := d.Post("ask", []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if data, err := d.Read("ask"); err != nil || string(data) != "hello" {
		t.Fatalf("%q, %v", data, err)
	}
	if held, err := d.Held("ask"); err != nil || !held {
		t.Fatalf("held: %v, %v", held, err)
	}
	if _, err := d.Post("ask", nil); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second one of the same name: %v", err)
	}
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	if held, err := d.Held("ask"); err != nil || held {
		t.Errorf("after the poster's end: held %v, %v", held, err)
	}
	if held, err := d.Held("none"); err != nil || held {
		t.Errorf("no such file: held %v, %v", held, err)
	}
	if names, err := d.List(""); err != nil || len(names) != 1 {
		t.Errorf("%v, %v", names, err)
	}
}
