// Package node installs rail-cni's plugins on a node, and uninstalls them once
// no pod needs them. It then restores the earlier files, byte for byte:
// pkg/install keeps their record.
//
// The end of a pod needs the plugins, so a plugin is removed only if no pod has
// a NIC or an address of ours and no address waits to be freed. After the
// removal an uninstallation checks again, and restores the plugins if a pod
// came at the last moment, even if it was killed in between. The node file is
// installed before the plugins, which read it.
//
// To install, and later to uninstall:
//
//	plugins := node.Plugins{BinDirs: dirs, Own: own, Names: node.PluginNames, Record: install.Open(install.DefaultDir), Log: log}
//	inUse := func() []string { return node.Users(stateDirs) }
//	err := plugins.Put(ctx, inUse)
//
//	u := &node.Uninstaller{Plugins: plugins, InUse: inUse, Stop: stop, Notify: notify}
//	go u.Run(ctx)
package node
