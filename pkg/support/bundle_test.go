package support

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// planted is a document with secrets, and with text around them that a bundle must keep.
const planted = `{"spec": {"containers": [{"name": "c", "args": ["--token=Planted1", "--state-dir=/run/rail-cni"], "env": [
	{"name": "AWS_SECRET_ACCESS_KEY", "value": "Planted2"}, {"name": "NCCL_IB_PKEY", "value": "kept1"}, {"name": "DB_PASSWORD", "value": "Planted3"}]}],
	"volumes": [{"name": "x", "secret": {"secretName": "kept2"}}], "tokenExpirationSeconds": 3600, "token": "Planted4"},
	"metadata": {"name": "kept3", "managedFields": [{"manager": "Planted5"}], "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "Planted6"}},
	"config": "{\"type\": \"host-device\", \"password\": \"Planted7\", \"kubeconfig\": \"/etc/kept4\"}", "url": "https://user:Planted8@kept5/x",
	"file": "users:\n- user:\n    client-key-data: Planted9==\n    token: Planted10\n-----BEGIN EC PRIVATE KEY-----\nPlanted11\n-----END EC PRIVATE KEY-----\nkept6",
	"log": "Authorization: Bearer Planted12 and eyJhbGciOiJSUzI1NiIs.eyJpc3MiOiJrdWJlcm5ldGVz.Planted13 kept7"}`

func TestSecretsAreNotInTheBundle(t *testing.T) {
	var out bytes.Buffer
	b := New(&out, "bundle", "Head.", time.Unix(0, 0))
	if err := b.AddText("object.json", "an object", []byte(planted)); err != nil {
		t.Fatal(err)
	}
	b.Add("text.log", "a log", []byte("level=info msg=started token=Planted14 x-api-key: 'Planted15'\npassword: \"Planted16\" kept8 secretName: kept9 the token is kept10"))
	b.Missing("something", errors.New("GET https://a:Planted17@b/ was refused:\nno right"))
	if err := b.AddText("broken.json", "", []byte("{")); err == nil {
		t.Error("a document that is no JSON is added")
	}
	missing, err := b.Close()
	if err != nil || len(missing) != 1 {
		t.Fatalf("%v, %q", err, missing)
	}
	files := testnet.Archive(t, out.Bytes())
	if len(files) != 3 {
		t.Errorf("%d files", len(files))
	}
	all := ""
	for path, text := range files {
		if strings.Contains(text, "Planted") {
			t.Errorf("%s has a secret:\n%s", path, text)
		}
		all += text
	}
	for _, want := range []string{"kept1", "kept2", "kept3", "kept4", "kept5", "kept6", "kept7", "kept8", "kept9", "kept10", "3600", "--state-dir=/run/rail-cni"} {
		if !strings.Contains(all, want) {
			t.Errorf("%s is left out", want)
		}
	}
	for _, want := range []string{"Head.", "  object.json\n      an object\n", "object.json: 11", "text.log: 3", "something: GET https://(left out)@b/ was refused: no right"} {
		if !strings.Contains(files["README.txt"], want) {
			t.Errorf("README.txt lacks %q:\n%s", want, files["README.txt"])
		}
	}
}

func TestBundleIsBounded(t *testing.T) {
	var out bytes.Buffer
	b := New(&out, "bundle", "", time.Unix(0, 0))
	b.maxFile, b.maxBundle = 1000, 4000
	long := bytes.Repeat([]byte("line of a log\n"), 100)
	for range 5 {
		b.Add("long.log", "", long)
	}
	if err := b.AddText("long.json", "", []byte(`"`+strings.Repeat("x", 1000)+`"`)); err == nil {
		t.Error("a document that is too large is added")
	}
	missing, err := b.Close()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(testnet.Archive(t, out.Bytes())["long.log"]); n > b.maxFile || n < b.maxFile-len("line of a log\n") {
		t.Errorf("%d bytes of %d", n, len(long))
	}
	if all := strings.Join(missing, "\n"); !strings.Contains(all, "only the last") || !strings.Contains(all, "the bundle would have more than") {
		t.Errorf("missing: %s", all)
	}
}

func TestBundleReportsItsWriter(t *testing.T) {
	b := New(failing{}, "bundle", "", time.Unix(0, 0))
	b.Add("a", "", []byte("text"))
	if _, err := b.Close(); !errors.Is(err, errFull) {
		t.Error(err)
	}
}

var errFull = errors.New("no space left on device")

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errFull }

func TestLogsOfThisNode(t *testing.T) {
	dir := t.TempDir()
	for path, text := range map[string]string{
		"kube-system_rail-agent-x_uid/rail-agent/0.log": "password=Planted" + strings.Repeat("Planted", logBytes/7-2) + "\nthe end, password=Planted", "kube-system_other_uid/c/0.log": "not ours", "default_rail-agent-x_uid/c/0.log": "not in the namespace",
	} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pod := filepath.Join(dir, "kube-system_rail-agent-x_uid/rail-agent")
	shadow := filepath.Join(t.TempDir(), "shadow")
	if err := errors.Join(
		os.Symlink("nowhere", filepath.Join(pod, "1.log")), os.Symlink("0.log", filepath.Join(pod, "2.log")),
		os.WriteFile(shadow, []byte("root:Planted"), 0o600), os.Symlink(shadow, filepath.Join(pod, "3.log")),
		unix.Mkfifo(filepath.Join(pod, "4.log"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	b := New(&out, "bundle", "", time.Unix(0, 0))
	b.AddPodLogs(dir, "kube-system")
	missing, err := b.Close()
	if err != nil || len(missing) != 3 || !strings.Contains(missing[0], "1.log") || !strings.Contains(missing[1], "is not below") || !strings.Contains(missing[2], "not a regular file") {
		t.Errorf("missing: %q, %v", missing, err)
	}
	files := testnet.Archive(t, out.Bytes())
	text := files["logs/kube-system_rail-agent-x_uid/rail-agent/0.log"]
	if text != "the end, password=(left out)" || len(files) != 3 || files["logs/kube-system_rail-agent-x_uid/rail-agent/2.log"] != text {
		t.Errorf("%d files, the log has %d bytes", len(files), len(text))
	}
}
