// Package node installs rail-cni's plugins on a node, and uninstalls them once
// nobody needs them. What was there before is there again afterwards, byte for byte:
// pkg/install keeps the record of it.
//
// A plugin is removed only when no pod has a NIC or an address of ours and no address
// waits to be freed, because the end of a pod needs it. An uninstallation looks once
// more after it removed the plugins, and puts them back for a pod that came in the
// last moment; so it does after it was killed in between. The node file comes before
// the plugins that read it.
//
// To install, and later to uninstall:
//
//	plugins := node.Plugins{BinDirs: dirs, Own: own, Names: agent.Plugins, Record: install.Open(install.DefaultDir), Log: log}
//	inUse := func() []string { return node.Users(stateDirs) }
//	err := plugins.Put(ctx, inUse)
//
//	u := &node.Uninstaller{Plugins: plugins, InUse: inUse, Stop: stop, Tell: tell}
//	go u.Run(ctx)
package node
