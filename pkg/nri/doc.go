// Package nri adjusts the containers of pods that hold rails. It is a plugin for the Node Resource
// Interface of containerd and CRI-O (github.com/containerd/nri), and a component of rail-agent.
//
// The plugin answers only CreateContainer, which the runtime calls after CNI and before the
// container exists. The plugin does not change containers of a pod without rails. To containers of
// a pod with rails, it adds the variables of package railinfo, the mount of the pod's files,
// RLIMIT_MEMLOCK, and the char devices of the lent RDMA devices. It does not change anything that
// the container already has from the user, the image or a device plugin.
//
// An error prevents a container from starting only if the pod has the annotation
// [railinfo.RequireAnnotation]. An answer takes at most half a second, because a runtime waits two
// seconds for a plugin and then disconnects it. A panic is recovered, counted and reported.
//
//	plugin := nri.New(nri.Options{Socket: "/var/run/nri/nri.sock", Lookup: keeper.Lookup, Log: log})
//	plugin.Run(ctx)
package nri
