package controlplane

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/httpstream/wsstream"
)

// The statuses of a program that [Exec] returns.
const (
	ExecSuccess = `{"metadata":{},"status":"Success"}`
	ExecFailure = `{"metadata":{},"status":"Failure","message":"command terminated with exit code 1","reason":"NonZeroExitCode"}`
)

// Exec runs a program in a pod. It returns what the program prints, and its status.
type Exec func(pod string, command []string) (out, status string)

// StartKubelet starts the part of a kubelet that runs programs in containers, with the
// kubelet's own protocol, for a plane without nodes. It returns its port of 127.0.0.1. One serves
// all nodes whose status has that address and port.
func StartKubelet(t testing.TB, exec Exec) (port int) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/") // exec, namespace, pod, container
		if len(parts) != 4 || parts[0] != "exec" {
			http.NotFound(w, r)
			return
		}
		err := ServeExec(w, r, func(command []string) (out, errOut, status string) {
			out, status = exec(parts[2], command)
			return out, "", status
		})
		if err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	address, _ := server.Listener.Addr().(*net.TCPAddr)
	return address.Port
}

// ServeExec answers a request to run a program in a container, as a kubelet and the API server do. run returns what the program
// prints, and its status.
func ServeExec(w http.ResponseWriter, r *http.Request, run func(command []string) (out, errOut, status string)) error {
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{"v4.channel.k8s.io": {
		Binary: true, Channels: []wsstream.ChannelType{wsstream.IgnoreChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel},
	}})
	_, streams, err := conn.Open(w, r)
	if err != nil {
		return err
	}
	defer conn.Close()
	out, errOut, status := run(r.URL.Query()["command"])
	for i, text := range []string{1: out, 2: errOut, 3: status} {
		if text != "" {
			_, _ = streams[i].Write([]byte(text)) // the client may be gone
		}
	}
	return nil
}
