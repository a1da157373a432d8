// Package metricsauth decides who may read an agent's metrics. [Guard] accepts a request if the
// cluster accepts its bearer token. [Certificate] is the certificate of the server.
//
// A token is reviewed once. Then its result is remembered for a while by the token's digest,
// whether the token was accepted or refused. Only a few reviews run at the same time, and even
// fewer for one sender. So false tokens do not load the API server, and do not delay right tokens.
// A certificate that was read is used until a newer certificate can be read.
//
// This is a server for Prometheus:
//
//	certificate, err := metricsauth.NewCertificate("", node)
//	if err != nil {
//		return err
//	}
//	guard := metricsauth.NewGuard(client, log)
//	server := http.Server{Handler: guard.Before(metrics), TLSConfig: certificate.TLS()}
package metricsauth
