// Package node installs rail-cni's plugins on a node. It uninstalls them when no pod needs them any
// more, and then restores the earlier files, byte for byte. The package pkg/install keeps the
// record of these files.
//
// The plugins are needed when a pod ends. So a plugin is removed only if no pod has a NIC or an
// address from rail-cni, and no address waits to be freed. After the removal, the uninstallation
// checks this again. If a pod came at the last moment, it restores the plugins. It does so even if
// it was killed in between and is run again. The node file is installed before the plugins, because
// the plugins read it.
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
