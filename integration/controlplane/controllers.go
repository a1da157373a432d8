package controlplane

import (
	"context"
	"path/filepath"

	"github.com/rail-cni/rail-cni/integration/process"
)

// launch starts one of the plane's programs in the plane's namespace.
func (p *Plane) launch(args ...string) (*process.Process, error) {
	name := filepath.Base(args[0])
	return process.Start(process.Spec{
		Name: name, Log: p.file(name + ".log"), Args: args,
		Env:   []string{"GOGC=400"}, // a fifth less CPU time, for 100 MB
		Enter: func(start func() error) error { return within(p.netns, start) },
	})
}

// startControllers starts the scheduler and the controllers, and waits until
// the default service account of pods exists.
func (p *Plane) startControllers(ctx context.Context) error {
	if err := writeFiles(map[string][]byte{p.file("ca.crt"): p.CA()}); err != nil {
		return err
	}
	for _, args := range [][]string{
		{p.binaries.scheduler},
		{
			p.binaries.controllers, "--use-service-account-credentials=true",
			"--service-account-private-key-file=" + p.file("account.key"), "--root-ca-file=" + p.file("ca.crt"),
		},
	} {
		user := "system:" + filepath.Base(args[0])
		c, err := p.CertificateFor(user)
		if err != nil {
			return err
		}
		kubeconfig, err := p.Kubeconfig(c, Form{Server: "https://" + p.inner})
		if err != nil {
			return err
		}
		started, err := p.launch(append(args, "--kubeconfig="+kubeconfig, "--bind-address=127.0.0.1", "--leader-elect=false",
			"--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig)...)
		if err != nil {
			return err
		}
		p.controllers = append(p.controllers, started)
	}
	last := p.controllers[len(p.controllers)-1]
	return last.Poll(ctx, patience, func(ctx context.Context) error {
		return p.Admin().into(ctx, nil, "GET", "/api/v1/namespaces/default/serviceaccounts/default", "", nil)
	})
}

// ServingCertificate makes the certificate of a server with these names and
// addresses, for example of a kubelet.
func (p *Plane) ServingCertificate(name string, hosts ...string) (c Credential, err error) {
	c.Certificate, c.Key, err = p.authority().server(name, hosts...)
	return c, err
}
