// Package node installs rail-cni's plugins on a node, and uninstalls them once
// nobody needs them. What was there before is there again afterwards, byte for byte:
// pkg/install keeps the record of it.
//
// A plugin is removed only when no pod has a NIC or an address of ours and no address
// waits to be freed, because the end of a pod needs it. After an uninstallation has
// removed the plugins it looks once more, and puts them back if a pod came at the last
// moment. It does so even if it was killed in between. The node file is installed
// before the plugins, which read it.
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
