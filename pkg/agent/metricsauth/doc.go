// Package metricsauth decides who may read an agent's metrics: [Guard] accepts
// requests whose bearer token the cluster accepts, and [Certificate] is the
// certificate of the server.
//
// A token is reviewed once and then remembered for a while by its digest, whether
// it was accepted or not. Reviews are few at a time, and fewer yet for one sender,
// so that false tokens neither load the API server nor keep right ones out. A
// certificate that was read once is used until the next one can be read.
//
// A server for Prometheus:
//
//	certificate, err := metricsauth.NewCertificate("", node)
//	if err != nil {
//		return err
//	}
//	guard := metricsauth.NewGuard(client, log)
//	server := http.Server{Handler: guard.Before(metrics), TLSConfig: certificate.TLS()}
package metricsauth
