//go:build machines

package pods

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/cluster"
	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/rig"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// The node's own paths, beside the usual ones.
const (
	programs   = "/node/bin"
	images     = "/node/images"
	account    = "/node/kubeconfig"
	toolsImage = "localhost/tools:1"
	pauseImage = "localhost/pause:1"
	nodeName   = "rig"
	plugins    = "/opt/cni/bin"
	// upstreamPlugin is the name of the reference plugin host-device on the node.
	upstreamPlugin = "upstream-host-device"
)

// ibdev2netdev prints what NVIDIA's script of that name prints, from the RDMA
// devices that a container without privileges sees.
const ibdev2netdev = `#!/bin/sh
for port in /sys/class/infiniband/*/ports/*; do
	netdev=$(cat $port/gid_attrs/ndevs/0 2>/dev/null) && test -e /sys/class/net/$netdev || continue
	device=${port%/ports/*} state=Down
	test "$(cat /sys/class/net/$netdev/operstate)" != up || state=Up
	echo "${device##*/} port ${port##*/} ==> $netdev ($state)"
done
`

// TestPodHasItsRailsWithRDMA starts the API server here and the node in a
// machine, in which it runs itself.
func TestPodHasItsRailsWithRDMA(t *testing.T) {
	if os.Getenv(rig.Mark) != "" {
		onTheNode(t)
		return
	}
	plane := controlplane.Start(t, controlplane.Options{})
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	pods, err := podCount()
	if err != nil {
		t.Fatal(err)
	}
	limit := 15*time.Minute + time.Duration(pods)*time.Minute
	cmd := exec.CommandContext(t.Context(), filepath.Join("..", "..", "..", "bin", "tools", "rig"), program,
		"-test.v", "-test.run=^"+t.Name()+"$", "-test.timeout="+limit.String())
	cmd.Env = append(os.Environ(), "RIG_FILES="+nodeFiles(t), "RIG_REACH="+withoutTLS(t, plane), "RIG_MEMORY=3072", "RIG_GPUS=yes")
	out, err := cmd.CombinedOutput()
	if t.Logf("%s", out); err != nil {
		t.Error(err)
	}
}

// withoutTLS returns an address at which the API server treats everyone as an
// administrator: in the machine a TLS handshake may take longer than Multus
// waits for an answer (a quarter of a second).
func withoutTLS(t *testing.T, plane *controlplane.Plane) (address string) {
	t.Helper()
	c, err := plane.CertificateFor(nodeName, "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(c.Certificate, c.Key)
	if err != nil {
		t.Fatal(err)
	}
	server, err := url.Parse(plane.Server())
	if err != nil {
		t.Fatal(err)
	}
	trust := x509.NewCertPool()
	trust.AppendCertsFromPEM(plane.CA())
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(server) },
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: trust, MinVersion: tls.VersionTLS12}},
		FlushInterval: -1, // watches
	})
	t.Cleanup(func() { proxy.CloseClientConnections(); proxy.Close() })
	return proxy.Listener.Addr().String()
}

// nodeFiles returns a directory of the node's files from this host: programs
// with their libraries, plugins and images.
func nodeFiles(t *testing.T) string {
	t.Helper()
	files := rig.Files(t.TempDir())
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v (run `make cluster-binaries peers`)", err)
		}
	}
	put := func(at, source string) { t.Helper(); must(files.Put(at, source)) }
	runtime, err := controlplane.Built("RAIL_CNI_RUNTIME", "tools", "runtime")
	if err != nil {
		t.Fatal(err)
	}
	kubernetes, err := controlplane.Built("RAIL_CNI_CONTROLPLANE", "tools", "controlplane")
	if err != nil {
		t.Fatal(err)
	}
	put(programs+"/kubelet", filepath.Join(kubernetes, "kubelet"))
	if need.Full() { // see podBehindThickMultus
		put(programs+"/"+multusDaemon, filepath.Join(testnet.Peers(t), "kubernetes", "multus-daemon"))
		put(plugins+"/multus-shim", filepath.Join(testnet.Peers(t), "kubernetes", "multus-shim"))
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc"} {
		must(files.PutProgram(programs+"/"+name, filepath.Join(runtime, name)))
	}
	for _, name := range []string{"host-local", "loopback", "kubernetes/multus"} {
		put(plugins+"/"+filepath.Base(name), filepath.Join(testnet.Peers(t), name))
	}
	put(plugins+"/"+upstreamPlugin, filepath.Join(testnet.Peers(t), "host-device"))
	for _, path := range cluster.OurPlugins(testnet.Bin(t)) {
		put(plugins+"/"+filepath.Base(path), path)
	}
	archives := t.TempDir()
	script := filepath.Join(archives, "script")
	if err := os.WriteFile(script, []byte(ibdev2netdev), 0o755); err != nil {
		t.Fatal(err)
	}
	busybox := map[string]string{"/bin/busybox": filepath.Join(runtime, "busybox")}
	pause := cluster.Image{Name: pauseImage, Entrypoint: []string{"/bin/busybox", "sleep", "2147483647"}, Files: busybox}
	tools := cluster.Image{
		Name: toolsImage, Entrypoint: []string{"/bin/sh", "-c", "trap exit TERM; while :; do sleep 1; done"},
		Files: map[string]string{"/bin/busybox": busybox["/bin/busybox"], "/bin/ibdev2netdev": script},
		Links: map[string]string{"/bin/sh": "busybox", "/bin/sleep": "busybox", "/bin/cat": "busybox"},
	}
	for i, image := range []cluster.Image{pause, tools} {
		file := filepath.Join(archives, fmt.Sprint(i, ".tar"))
		if err := image.WriteFile(file); err != nil {
			t.Fatal(err)
		}
		put(filepath.Join(images, filepath.Base(file)), file)
	}
	return string(files)
}
