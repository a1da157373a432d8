// Package kube is a client of the Kubernetes API server: one request, one
// object, in JSON, with errors that name the cure.
//
// client-go makes the transport (certificates, tokens, proxies). This package
// reads the kubeconfig and makes the requests: a plugin is a new process for each
// pod, and the parts of client-go that do these things (clientcmd, rest) are built
// on apimachinery's schemes and codecs, whose initialization takes half a
// millisecond of each call and 2 MB of memory, even without a cluster. Tests
// compare the meaning of a kubeconfig with client-go's. The client has no
// throttle.
//
// No program is run for credentials: a network names the kubeconfig of its plugin,
// which runs as root. A command that a person runs brings its own access by
// Config.Load: railctl has client-go read the kubeconfig.
//
// A failure that may be temporary is retried until the caller's context ends:
// no answer, 429 (after the server's delay) and 5xx. So a caller must set a
// deadline in its context.
//
// To read an object:
//
//	client, err := kube.Open(kube.Config{Kubeconfig: path})
//	…
//	pod, err := client.Get(ctx, kube.Resource{Version: "v1", Plural: "pods", Namespace: "default"}, "web-0")
package kube
