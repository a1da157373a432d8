// Package kubeletdir is the kubelet's root directory, as a device plugin uses it: the sockets in it, the kubelet's own and
// those of device plugins; what the kubelet has given to containers, which it says at a socket ([PodResources]) and keeps
// in a file ([Checkpoint]); and what other device plugins serve ([Others]).
//
// Except for the socket that [Listen] makes, it changes nothing in the directory. It knows no pools and no NICs.
//
//	containers, err := kubeletdir.NewPodResources("/var/lib/kubelet").Containers(ctx)
package kubeletdir
