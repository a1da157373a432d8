//go:build machines

package pods

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/rail-cni/rail-cni/integration/rig/wire"
)

// The files of Multus' daemon on the node.
const (
	multusConf   = "/etc/cni/net.d/00-multus.conf"
	clusterNets  = "/etc/cni/multus/net.d"
	daemonConf   = "/etc/cni/net.d/multus.d/daemon-config.json"
	multusDaemon = "multus-daemon"
	podAccount   = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// podBehindThickMultus replaces the thin Multus by the thick one, and makes a pod with the
// NIC that the kubelet allocated. Multus' daemon asks the kubelet then, and not its plugin.
func (n *node) podBehindThickMultus() {
	n.t.Helper()
	n.must(os.Remove(multusConf))
	config, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "multus-cni-network", "clusterNetwork": "cluster", "binDir": plugins,
		"multusConfigFile": "auto", "multusAutoconfigDir": clusterNets, "logLevel": "verbose", "logToStderr": true,
	})
	n.must(err)
	n.write(daemonConf, string(config))
	host, port, _ := strings.Cut(n.withTLS(), ":")
	n.daemon(multusDaemon, []string{"-config", daemonConf}, func(context.Context) error {
		text, err := os.ReadFile(multusConf)
		if err == nil && !json.Valid(text) {
			err = errors.New("the runtime's configuration is not complete")
		}
		return err
	}, "KUBERNETES_SERVICE_HOST="+host, "KUBERNETES_SERVICE_PORT="+port, "USER=root")
	text, err := os.ReadFile(multusConf)
	if n.must(err); !bytes.Contains(text, []byte("multus-shim")) {
		n.t.Fatalf("the runtime's configuration: %s", text)
	}
	n.daemons["containerd"].Kill() // it may notice the file late
	n.containerd()

	const rail = 6
	n.railNetwork(rail)
	before, devices := n.State(), n.devices()
	n.podsOfRails("thick", []int{rail})
	n.asBefore(before, devices)
	log, err := os.ReadFile(filepath.Join(logDir, multusDaemon+".log"))
	n.must(err)
	for _, verb := range []string{"ADD", "DEL"} {
		if !bytes.Contains(log, []byte(verb+" finished CNI request")) {
			n.t.Errorf("Multus' daemon did not answer %s:\n%s", verb, log)
		}
	}
}

// withTLS returns an address on the node at which a program reaches the API server as from
// a pod, by TLS and with the files of a service account, which it writes.
func (n *node) withTLS() (address string) {
	n.t.Helper()
	proxy := httptest.NewTLSServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: wire.Reached})
			r.Out.Header.Del("Authorization") // everyone is an administrator there
		},
		FlushInterval: -1, // watches
	})
	n.t.Cleanup(func() { proxy.CloseClientConnections(); proxy.Close() })
	n.write(podAccount+"/ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: proxy.Certificate().Raw})))
	n.write(podAccount+"/token", "of-nobody")
	return proxy.Listener.Addr().String()
}
