// Package kube is the way to the Kubernetes API server: one request, one
// object, in JSON, with errors that a person can act on.
//
// client-go reads the kubeconfig and makes the transport (certificates,
// tokens, exec plugins, proxies). Requests are made here, because a plugin is
// a new process for each pod: without typed clients, schemes and informers it
// is smaller and starts sooner, and it alone decides what is retried. There is
// no throttle on the client's side.
//
// Whatever may pass is retried until the caller's context ends: no answer, 429
// (after the time that the server asks for) and 5xx. A caller must thus give
// its context a deadline.
//
// Of ours the package imports only pkg/cnierr.
package kube
