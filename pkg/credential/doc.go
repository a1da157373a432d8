// Package credential maintains the files on a node that the plugin whereabouts needs to reach the
// API server. These are a kubeconfig with a token of a service account, the flat file that names
// the kubeconfig, and a file with the node's name.
//
// The token is renewed after half of its lifetime, and as soon as the server no longer accepts it.
// If the server supports this, the token is bound to the Node. A file is always replaced
// completely. The flat file is replaced last, so a plugin never reads the path of a file that does
// not exist. Files of another installer are replaced at once only if Replace is set in [Options].
//
// To maintain the files until ctx ends:
//
//	keeper := credential.New(credential.Options{
//		Client: client, ConfDir: "/etc/cni/net.d", Node: node, Account: "rail-cni-whereabouts",
//		Namespace: client.Namespace(), Lifetime: 24 * time.Hour, Put: record.Put, Log: log,
//	})
//	go keeper.Run(ctx)
package credential
