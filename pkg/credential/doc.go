// Package credential maintains the files of a node by which the plugin
// whereabouts reaches the API server: a kubeconfig with a token of a service
// account, the flat file that names it, and the node's name.
//
// The token is renewed after half of its lifetime, and as soon as the server no
// longer accepts it. It is bound to the Node if the server supports that. A
// file is replaced as a whole, the flat file last, so a plugin never reads the
// path of a missing file. Files of another installer stay unless Replace is set
// in [Options].
//
// To maintain the files until ctx ends:
//
//	keeper := credential.New(credential.Options{
//		Client: client, ConfDir: "/etc/cni/net.d", Node: node, Account: "rail-cni-whereabouts",
//		Namespace: client.Namespace(), Lifetime: 24 * time.Hour, Put: record.Put, Log: log,
//	})
//	go keeper.Run(ctx)
package credential
