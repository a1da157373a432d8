package main

import (
	"errors"
	"fmt"
	"net"

	"github.com/spf13/pflag"

	"github.com/rail-cni/rail-cni/pkg/agent"
	"github.com/rail-cni/rail-cni/pkg/agent/metricsauth"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// metricsFlags are the flags of "run" that decide who may read the metrics.
type metricsFlags struct {
	secure bool
	cert   string
}

func (f *metricsFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.secure, "metrics-secure", false, "serve --metrics over HTTPS, and serve /metrics only to clients with a token of the cluster that has the right to get it")
	flags.StringVar(&f.cert, "metrics-cert", "", "directory with tls.crt and tls.key for --metrics-secure, "+
		"which are read again when they change (default: a self-signed certificate)")
}

// begin sets the fields of o that say how the metrics are served.
func (f *metricsFlags) begin(o *agent.Options, client *kube.Client) error {
	if o.Metrics == "" {
		return nil
	}
	if !f.secure {
		if host, _, err := net.SplitHostPort(o.Metrics); err == nil && !loopback(host) {
			o.Log.Warn("anyone on the network can read the metrics; use --metrics-secure to prevent that", "address", o.Metrics)
		}
		return nil
	}
	if client == nil {
		return errors.New("--metrics-secure needs a cluster that reviews tokens; name a kubeconfig with --kubeconfig")
	}
	certificate, err := metricsauth.NewCertificate(f.cert, o.NodeName)
	if err != nil {
		return fmt.Errorf("--metrics-cert: %w", err)
	}
	o.MetricsTLS, o.MetricsGuard = certificate.TLS(), metricsauth.NewGuard(client, o.Log).Before
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
