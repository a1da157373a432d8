// Package controlplane runs a real etcd and a real kube-apiserver for tests and
// measurements: the API that the IPAM plugin uses, with its failures. "make
// controlplane" builds both from their Go modules.
//
// [Start] starts a control plane for a test, [New] one for a program. It has
// the CustomResourceDefinitions of deployments/crds, checks client certificates
// and service account tokens (authorization by Node and RBAC), and has no
// controllers: no pod is scheduled, nothing is garbage collected, and service
// accounts must be made. A test can:
//
//   - reach it: [Plane.Admin] and [Plane.Client] are plain HTTP clients,
//     [Plane.Kubeconfig] writes the files that plugins read, and [Plane.Reach]
//     brings it into another network namespace;
//   - break it: either process can be killed and started again, etcd can be
//     paused;
//   - count its requests: [Plane.Requests], from the audit log.
//
// Both processes listen on loopback only, on ports outside of the kernel's
// range for clients, keep all their files below one directory, and end with the
// process that started them, even if that one is killed.
package controlplane
