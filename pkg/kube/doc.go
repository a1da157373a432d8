// Package kube is a client of the Kubernetes API server. Each request is about one object
// or one list, in JSON. Errors name the cure.
//
// client-go makes the transport (certificates, tokens, proxies). This package reads the
// kubeconfig and makes the requests, because a plugin is a new process for each pod. The
// parts of client-go that do these things (clientcmd, rest) use apimachinery's schemes and
// codecs. Their initialization takes half a millisecond of each call and 2 MB of memory,
// even without a cluster. Tests compare the meaning of a kubeconfig with client-go's. The
// client has no throttle.
//
// The package runs no program for credentials: a network names the kubeconfig of its
// plugin, and the plugin runs as root. A command that a person runs brings its own access
// by Config.Load. For example, railctl has client-go read the kubeconfig.
//
// A failure that may be temporary is retried until the caller's context ends. Such failures
// are: no answer, 429 (retried after the server's delay) and 5xx. So a caller must set a
// deadline in its context.
//
// To read an object:
//
//	client, err := kube.Open(kube.Config{Kubeconfig: path})
//	…
//	pod, err := client.Get(ctx, kube.Resource{Version: "v1", Plural: "pods", Namespace: "default"}, "web-0")
package kube
