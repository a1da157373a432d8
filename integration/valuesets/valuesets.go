// Package valuesets has sets of values of the chart. Tests of deployments/kustomize/base have a
// real API server validate what the chart makes of each, and those of integration/e2e install
// each in a cluster.
package valuesets

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// Chart is the chart's directory, from the top of the tree.
const Chart = "deployments/helm/rail-cni"

// Set is a set of values of the chart.
type Set struct {
	Name string
	// Values are as [Args] takes them.
	Values []string
	// Adds is the number of objects that the chart makes with the set, less those of the defaults.
	Adds int
	// Here are values that follow Values where the set is installed in the cluster of integration/cluster.
	Here []string
}

// Args returns helm's arguments for values. One that ends with ".yaml" is the path of a file, from the
// chart's directory if it is not absolute; the others are as --set takes them.
func Args(chart string, values ...string) (args []string) {
	for _, v := range values {
		switch {
		case !strings.HasSuffix(v, ".yaml"):
			args = append(args, "--set", v)
		case filepath.IsAbs(v):
			args = append(args, "--values", v)
		default:
			args = append(args, "--values", filepath.Join(chart, v))
		}
	}
	return args
}

// The values that a test replaces by what its image and its cluster have.
const (
	// NoDigest is the digest of no image.
	NoDigest = "sha256:0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"
	// Tag is one of the tags in the sets. The others have the chart's default, "devel".
	Tag = "v1"
)

// All are the sets.
var All = []Set{
	{Name: "the defaults"},
	{Name: "names of plugins, of nodes and of the API server", Values: []string{
		"image.tag=" + Tag, "image.pullSecrets={a,b}", "plugins.prefix=rail-", "plugins.names={macvlan,whereabouts}", "whereabouts.apiServer=https://[fd00::1]:6443",
		"whereabouts.replaceFiles=true", "reconcile=false", "metrics.address=::1", "nodeSelector.a=b", "priorityClassName=", "maxUnavailable=1",
		"stateDirs={/run/rail-cni,/run/other}", "tolerations=null", "resources=null",
		"affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key=a",
		"affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator=Exists",
		"cniBinDir=/home/kubernetes/bin", "cniConfDir=/etc/kubernetes/cni/net.d",
	}, Adds: -7, Here: []string{"whereabouts.apiServer=https://" + controlplane.ServiceAddress}}, // it has no IPv6
	{Name: "agents reconcile", Values: []string{"uninstall.enabled=false", "metrics.address=0.0.0.0", "reconcile=daemonset", "admissionPolicy=false"}, Adds: -6 - 2 - 8},
	{Name: "nobody reconciles", Values: []string{
		"privileged=false", "netnsDirs={/run/netns}", "metrics.secure=true", "metrics.certSecret=a", "reconcile=off", "image.digest=" + NoDigest,
	}, Adds: 2 - 7},
	{Name: "OpenShift", Values: []string{"values-openshift.yaml"}, Adds: 2},
	{Name: "the device plugin by plugins_registry", Values: []string{
		"devicePlugin.enabled=true", "devicePlugin.cdi=true", "devicePlugin.sharedConfigMap=rdma-devices", "devicePlugin.kubeletDir=/data/kubelet",
		"devicePlugin.devicePlugins=false", "privileged=false",
	}, Here: []string{"devicePlugin.kubeletDir=/var/lib/kubelet"}}, // where its kubelets are
	{Name: "pools of nodes", Values: []string{
		"devicePlugin.enabled=true", "nodePools[0].name=a", "nodePools[0].nodeSelector.gpu=a", "nodePools[0].nodeFile.rails.auto=pciOrder",
		"nodePools[1].name=b-2", "nodePools[1].nodeSelector.gpu=b", "nameOverride=nics",
	}, Adds: 1},
	{Name: "Talos", Values: []string{"values-talos.yaml"}},
	{Name: "Bottlerocket", Values: []string{"values-bottlerocket.yaml"}},
	{Name: "k3s", Values: []string{"values-k3s.yaml"}},
	{Name: "MicroK8s", Values: []string{"values-microk8s.yaml", "devicePlugin.enabled=true"}},
	{Name: "annotations of pods, in any case with policies", Values: []string{
		"nodeFile.nics[0].name=ens*", "nodeFile.allow={uplink}", "reconcile=true", "admissionPolicy=true", "annotatePods=true", "reconciler.nodeSelector.a=b",
		"reconciler.tolerations=null", "reconciler.resources=null",
	}, Adds: 2 + 2}, // also the policy for node slices
	{Name: "other names", Values: []string{"fullnameOverride=team-a-rails", "admissionPolicy=true"}, Adds: 2},
	{Name: "labels and annotations", Values: []string{
		"commonLabels.team=network", "podLabels.sidecar=no", "podAnnotations.example\\.com/scrape=yes", "serviceAccount.annotations.example\\.com/role=none",
	}},
	{Name: "logs for a collector", Values: []string{"log.level=debug", "log.format=json"}},
	{Name: "two reconcilers", Values: []string{"reconciler.replicas=2", "reconciler.extraArgs={--interval=5m}", "reconciler.extraEnv[0].name=A", "reconciler.extraEnv[0].value=b"}, Adds: 1},
	{Name: "railctl on the nodes", Values: []string{"railctl.hostDir=/usr/local/bin"}},
	{Name: "railctl off the nodes", Values: []string{"railctl.hostDir=/usr/local/bin", "railctl.install=false"}},
	{Name: "more of everything for the agents", Values: []string{
		"extraArgs={--doctor-interval=2m}", "extraEnv[0].name=GOMEMLIMIT", "extraEnv[0].value=64MiB", "extraVolumes[0].name=logs", "extraVolumes[0].emptyDir.sizeLimit=1Mi",
		"extraVolumeMounts[0].name=logs", "extraVolumeMounts[0].mountPath=/logs",
	}},
	{Name: "condition of Nodes", Values: []string{"doctor.nodeCondition=true", "doctor.enabled=true"}, Adds: 2, Here: []string{"extraArgs={--doctor-interval=1s}"}}, // it waits for two runs
	{Name: "dashboards", Values: []string{"monitoring.dashboards=true", "nri.enabled=false", "apiPriority.enabled=false"}, Adds: 4 - 2},
	{Name: "metrics for Prometheus", Values: []string{"metrics.address=::", "metrics.secure=true", "metrics.port=9500"}, Adds: 2},
	{Name: "Prometheus Operator", Values: []string{
		"monitoring.podMonitor.enabled=true", "monitoring.podMonitor.interval=15s", "monitoring.podMonitor.labels.release=prom", "monitoring.alerts=true", "monitoring.alertLabels.release=prom",
		"metrics.address=0.0.0.0", "metrics.secure=true", "monitoring.podMonitor.authorization.credentials.name=token", "monitoring.podMonitor.authorization.credentials.key=token",
		"monitoring.podMonitor.tlsConfig.ca.secret.name=a", "monitoring.podMonitor.tlsConfig.ca.secret.key=tls.crt", "monitoring.podMonitor.tlsConfig.serverName=rail-agent",
	}, Adds: 2 + 2},
}

// PrometheusOperator returns Prometheus Operator's definitions of the kinds that the chart makes
// objects of.
func PrometheusOperator(t testing.TB) (definitions [][]byte) {
	t.Helper()
	for _, plural := range []string{"podmonitors", "prometheusrules"} {
		definitions = append(definitions, testnet.ModuleFile(t, "integration/peers/prometheus-operator",
			"github.com/prometheus-operator/prometheus-operator", "example/prometheus-operator-crd/monitoring.coreos.com_"+plural+".yaml"))
	}
	return definitions
}
