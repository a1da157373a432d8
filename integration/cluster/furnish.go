package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/rail-cni/rail-cni/deployments/kustomize/base"
	"github.com/rail-cni/rail-cni/integration/controlplane"
)

// Files of a node.
const (
	containerdConf = "/etc/containerd/config.toml"
	kubeletConf    = "/var/lib/kubelet/config.yaml"
	kubeletAccount = "/var/lib/kubelet/kubeconfig"
	kubeletCert    = "/var/lib/kubelet/serving.crt"
	kubeletKey     = "/var/lib/kubelet/serving.key"
	clusterCA      = "/etc/kubernetes/ca.crt"
	runtimeConf    = "/etc/cni/net.d"
	pluginDir      = "/opt/cni/bin"
	multusAccount  = "/etc/cni/net.d/multus.d/multus.kubeconfig"
	multusDaemon   = "/etc/cni/net.d/multus.d/daemon-config.json"
	multusConf     = "/etc/cni/net.d/00-multus.conf"
	multusNetworks = "/etc/cni/multus/net.d"
	podAccount     = "/var/run/secrets/kubernetes.io/serviceaccount"
	flatFile       = "/etc/cni/net.d/whereabouts.d/whereabouts.conf"
	ipamAccount    = "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"
)

// NRISocket is where a containerd with NRI listens, on its node.
const NRISocket = "/var/run/nri/nri.sock"

// multusRole is the union of the roles in Multus' manifests: get for the thin
// one, list and watch for the thick one.
const multusRole = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: multus}
rules:
- {apiGroups: [k8s.cni.cncf.io], resources: ["*"], verbs: ["*"]}
- {apiGroups: [""], resources: [pods, pods/status], verbs: [get, list, update, watch]}
- {apiGroups: ["", events.k8s.io], resources: [events], verbs: [create, patch, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: multus}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: multus}
subjects: [{kind: ServiceAccount, name: multus, namespace: kube-system}]
`

// accounts makes the roles of Multus and of the plugin whereabouts, if they are
// to be installed.
func (c *Cluster) accounts(ctx context.Context) error {
	if c.multus() != None {
		if err := c.Apply(ctx, []byte(multusRole)); err != nil {
			return err
		}
	}
	if c.ipam() {
		roles, err := base.Files.ReadFile("plugin.yaml")
		if err != nil {
			return err
		}
		return c.Apply(ctx, roles)
	}
	return nil
}

func (c *Cluster) multus() string {
	if c.options.Multus == "" {
		return None
	}
	return c.options.Multus
}

// ipam reports whether the nodes have the plugin whereabouts from the start.
func (c *Cluster) ipam() bool {
	for _, path := range c.options.Plugins {
		if filepath.Base(path) == "whereabouts" {
			return true
		}
	}
	return false
}

// furnish writes the node's files, and starts Multus' daemon.
func (n *Node) furnish(ctx context.Context) error {
	if err := n.furnishDaemons(); err != nil {
		return err
	}
	plugins := append([]string{}, n.cluster.options.Plugins...)
	for _, name := range []string{"bridge", "host-local", "loopback"} {
		plugins = append(plugins, filepath.Join(n.cluster.files.peers, name))
	}
	for _, path := range plugins {
		if err := n.install(path); err != nil {
			return err
		}
	}
	if n.cluster.ipam() {
		account, err := n.cluster.ServiceAccount(ctx, "kube-system", "rail-cni-whereabouts")
		if err != nil {
			return err
		}
		if err := n.kubeconfig(ipamAccount, account); err != nil {
			return err
		}
		if err := n.writeJSON(flatFile, map[string]any{"datastore": "kubernetes", "kubernetes": map[string]any{"kubeconfig": ipamAccount}}); err != nil {
			return err
		}
		if err := n.write(filepath.Dir(flatFile)+"/nodename", []byte(n.Name)); err != nil {
			return err
		}
	}
	return n.furnishNetworks(ctx)
}

// install copies a plugin to the node, as installers of plugins do.
func (n *Node) install(path string) error {
	binary, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	dest := filepath.Join(pluginDir, filepath.Base(path))
	if err := n.write(dest, binary); err != nil {
		return err
	}
	return os.Chmod(n.Path(dest), 0o755)
}

// containerdConfig returns the configuration of the node's containerd.
// restrict_oom_score_adj: lowering it needs CAP_SYS_RESOURCE.
func (n *Node) containerdConfig() string {
	if n.cluster.options.NRI {
		return fmt.Sprintf(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %q
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [%q]
    conf_dir = %q
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = %q
      SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
[plugins."io.containerd.nri.v1.nri"]
  socket_path = %q
  [plugins."io.containerd.nri.v1.nri".default_validator]
    enable = true
`, PauseImage, pluginDir, runtimeConf, n.runtime("runc"), NRISocket)
	}
	return fmt.Sprintf(`version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  stream_server_address = "127.0.0.1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = %q
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = %q
      SystemdCgroup = false
`, PauseImage, pluginDir, runtimeConf, n.runtime("runc"))
}

// furnishDaemons writes the configuration of containerd and the kubelet.
func (n *Node) furnishDaemons() error {
	// failCgroupV1: the machine may have cgroup v1 only. oomScoreAdj: as above.
	// Nothing is evicted or deleted for space: the disk is the machine's.
	kubelet := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %s
healthzBindAddress: 127.0.0.1
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %s}}
authorization: {mode: Webhook}
tlsCertFile: %s
tlsPrivateKeyFile: %s
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
volumePluginDir: /var/lib/kubelet/volume-plugins
cgroupDriver: cgroupfs
cgroupRoot: /%s/%s
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
makeIPTablesUtilChains: false
resolvConf: ""
clusterDNS: [%s]
clusterDomain: %s
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: "1%%", nodefs.inodesFree: "1%%", imagefs.available: "1%%"}
%s
`, n.Address, clusterCA, kubeletCert, kubeletKey, n.cluster.cgroup, n.Name, dnsAddress, dnsZone, n.cluster.options.KubeletConfig)
	account, err := n.cluster.CertificateFor("system:node:"+n.Name, "system:nodes")
	if err != nil {
		return err
	}
	serving, err := n.cluster.ServingCertificate(n.Name, n.Name, n.Address)
	if err != nil {
		return err
	}
	if err := n.kubeconfig(kubeletAccount, account); err != nil {
		return err
	}
	for path, text := range map[string][]byte{
		containerdConf: []byte(n.containerdConfig()), kubeletConf: []byte(kubelet), clusterCA: n.cluster.CA(),
		kubeletCert: serving.Certificate, kubeletKey: serving.Key,
	} {
		if err := n.write(path, text); err != nil {
			return err
		}
	}
	return nil
}

// furnishNetworks writes the pods' first network, and the files of Multus'
// installer. containerd must not run yet: it may take half a minute to notice a
// file that is renamed into its directory.
func (n *Node) furnishNetworks(ctx context.Context) error {
	first := map[string]any{
		"cniVersion": "1.0.0", "name": "cluster", "plugins": []any{map[string]any{
			"type": "bridge", "bridge": "cni0", "isGateway": true,
			"ipam": map[string]any{
				"type": "host-local", "ranges": []any{[]any{map[string]any{"subnet": n.podNetwork()}}},
				"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
			},
		}},
	}
	multus := map[string]any{
		"cniVersion": "1.0.0", "name": "multus-cni-network", "clusterNetwork": "cluster", "binDir": pluginDir,
		"logLevel": "verbose", "logToStderr": true,
	}
	switch mode := n.cluster.multus(); mode {
	case None:
		return n.writeJSON(runtimeConf+"/10-cluster.conflist", first)
	case Thin, Thick:
		account, err := n.cluster.ServiceAccount(ctx, "kube-system", "multus")
		if err != nil {
			return err
		}
		// By its name, in Multus' confDir: if clusterNetwork names a file by
		// its path, Multus 4.3.0 caches the conflist without the keys that it
		// does not know, and the cluster network's DEL fails.
		if err := n.writeJSON(multusNetworks+"/10-cluster.conflist", first); err != nil {
			return err
		}
		if mode == Thick {
			return n.startMultus(ctx, multus, account)
		}
		if err := n.install(n.multusBinary("multus")); err != nil {
			return err
		}
		if err := n.kubeconfig(multusAccount, account); err != nil {
			return err
		}
		multus["type"], multus["kubeconfig"] = "multus", multusAccount
		return n.writeJSON(multusConf, multus)
	default:
		return fmt.Errorf("there is no form %q of Multus", mode)
	}
}

func (n *Node) multusBinary(name string) string {
	return filepath.Join(n.cluster.files.peers, "kubernetes", name)
}

// startMultus starts Multus' daemon, which writes the file that containerd
// reads.
func (n *Node) startMultus(ctx context.Context, config map[string]any, account controlplane.Credential) error {
	config["multusConfigFile"], config["multusAutoconfigDir"] = "auto", multusNetworks
	if err := n.writeJSON(multusDaemon, config); err != nil {
		return err
	}
	for path, text := range map[string][]byte{podAccount + "/ca.crt": n.cluster.CA(), podAccount + "/token": []byte(account.Token)} {
		if err := n.write(path, text); err != nil {
			return err
		}
	}
	if err := n.install(n.multusBinary("multus-shim")); err != nil {
		return err
	}
	return n.StartMultus(ctx)
}

// StartMultus starts the daemon of a thick Multus, and waits until it has
// written the runtime's configuration.
func (n *Node) StartMultus(ctx context.Context) error {
	env := []string{"KUBERNETES_SERVICE_HOST=" + controlplane.ServiceAddress, "KUBERNETES_SERVICE_PORT=443", "USER=root"}
	return n.StartDaemon(ctx, "multus", env, []string{n.multusBinary("multus-daemon"), "-config", multusDaemon}, func(context.Context) error {
		text, err := os.ReadFile(n.Path(multusConf))
		if err == nil && !bytes.HasSuffix(bytes.TrimSpace(text), []byte("}")) {
			err = fmt.Errorf("%s is not complete", multusConf)
		}
		return err
	})
}

// KillMultus kills the daemon of a thick Multus.
func (n *Node) KillMultus() { n.KillDaemon("multus") }
