// Package credential keeps, on a node, what the plugin whereabouts finds the API
// server by: a kubeconfig with a token of a service account, the flat file that names
// it, and the node's name.
//
// The token is renewed when half of its life is over, and as soon as the server no
// longer accepts it. It is bound to the Node where the server can do that. A file is
// replaced as a whole, the flat file last, so a plugin never reads a path that leads
// nowhere. Files of another installer stay unless they are to be replaced.
//
// An agent keeps it as long as it runs:
//
//	keeper := credential.New(credential.Options{
//		Client: client, ConfDir: "/etc/cni/net.d", Node: node, Account: "rail-cni-whereabouts",
//		Namespace: client.Namespace(), Lifetime: 24 * time.Hour, Put: record.Put, Log: log,
//	})
//	go keeper.Run(ctx)
package credential
