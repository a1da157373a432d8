// Package kube is a client of the Kubernetes API server: one request, one object, in
// JSON, with errors that a person can act on.
//
// client-go makes the transport (certificates, tokens, proxies). The kubeconfig is
// read here, the program that it may name for credentials is run here, and requests
// are made here: a plugin is a new process for each pod, and the parts of client-go
// that do these things (clientcmd, rest, exec) are built on apimachinery's schemes
// and codecs, whose initialization takes half a millisecond of each call and 2 MB of memory,
// also where there is no cluster. Tests compare what a kubeconfig means here and to
// client-go. There is no throttle on the client's side.
//
// A failure that may pass is retried until the caller's context ends: no answer, 429
// (after the time that the server asks for) and 5xx. A caller must thus give
// its context a deadline.
//
// Of ours the package imports only pkg/cnierr.
package kube
