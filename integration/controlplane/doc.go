// Package controlplane runs a real etcd and a real kube-apiserver for tests and
// measurements: the API that the IPAM plugin talks to, with everything that can
// happen to it. "make controlplane" builds both from their Go modules.
//
// [Start] gives a test a control plane of its own; [New] gives one to a
// programme. It knows the CustomResourceDefinitions of deployments/crds, checks
// client certificates and service account tokens (authorization by Node and
// RBAC), and has no controllers: no pod is scheduled, nothing is collected, and
// a service account exists when someone has made it. What a test does with it:
//
//   - reach it: [Plane.Admin] and [Plane.Client] are plain HTTP clients,
//     [Plane.Kubeconfig] writes the files that plugins read, and [Plane.Reach]
//     brings it into another network namespace;
//   - hurt it: either process can be killed and started again, etcd can be
//     paused;
//   - count what was asked of it: [Plane.Requests], from the audit log.
//
// Both processes listen on loopback only, on ports that the kernel gives to no
// one else by itself, keep all their files below one directory, and die with
// the process that started them, however that one dies.
package controlplane
