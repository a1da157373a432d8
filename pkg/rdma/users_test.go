package rdma

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

func resource(attrs ...nlattr.Attr) nlattr.Attrs { return attrs }

func word(typ uint16, n uint32) nlattr.Attr {
	return nlattr.Attr{Type: typ, Value: []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}}
}

func kernel(name string) nlattr.Attr {
	return nlattr.Attr{Type: attrKernelName, Value: append([]byte(name), 0)}
}

func kind(k byte) nlattr.Attr { return nlattr.Attr{Type: attrResourceType, Value: []byte{k}} }

func TestUsersAreProcessesAndKernelClients(t *testing.T) {
	defer func(was string) { modules = was }(modules)
	modules = t.TempDir()
	for _, dir := range []string{"vendor_ib/drivers/auxiliary:vendor_ib.rdma", "nvme_rdma/parameters"} {
		if err := os.MkdirAll(filepath.Join(modules, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	me := uint32(os.Getpid())
	resources := []nlattr.Attrs{
		resource(kind(qpSMI), kernel("ib_core")),
		resource(kind(qpGSI), kernel("other")), // of the port itself
		resource(kind(4), kernel("ib_core")),
		resource(kind(4), kernel("mlx5_ib")), // a driver's own
		resource(kind(4), kernel("vendor_ib")),
		resource(kind(2), kernel("nvme_rdma")),
		resource(kind(2), kernel("nvme_rdma")),
		resource(word(attrQPNumber, 17), kind(2), kernel("rdma_cm")),
		resource(kind(2), word(attrPID, me)),
		resource(word(attrPID, me)), // a context
		resource(kind(2)),           // the thread that made it has ended
	}
	ids := []nlattr.Attrs{
		resource(kernel("listener")),
		resource(word(attrQPNumber, 16), kernel("lnet")),
		resource(word(attrQPNumber, 17), kernel("rpcrdma")),
	}
	users, err := usersOf(resources, func() ([]nlattr.Attrs, error) { return ids, nil })
	want := []User{{Kernel: "nvme_rdma"}, {Kernel: "rpcrdma"}, {PID: int(me)}, {}}
	if err != nil || !reflect.DeepEqual(users, want) {
		t.Errorf("users %v, %v, want %v", users, err, want)
	}
	users, err = usersOf(resources, func() ([]nlattr.Attrs, error) { return nil, unix.EIO })
	want[1].Kernel = "rdma_cm"
	if !errors.Is(err, unix.EIO) || !reflect.DeepEqual(users, want) {
		t.Errorf("without the connections: users %v, %v, want %v", users, err, want)
	}
}

// A process can choose its name, and the name goes to logs and terminals.
func TestNameOfAUserIsQuoted(t *testing.T) {
	cmd := exec.Command("sh", "-c", `printf 'a\033[31m\nb' > /proc/$$/comm; echo; read x`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = cmd.Wait() }()
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if got, want := (User{PID: cmd.Process.Pid}).String(), fmt.Sprintf(`process %d ("a\x1b[31m\nb")`, cmd.Process.Pid); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := (User{PID: os.Getpid()}).String(); !strings.HasSuffix(got, "(rdma.test)") {
		t.Error(got)
	}
	// The text must have both reasons: otherwise users in a debug pod would look for a process that
	// still exists.
	if got := (User{}).String(); !strings.Contains(got, "has ended") || !strings.Contains(got, "in another PID namespace") {
		t.Error(got)
	}
}
