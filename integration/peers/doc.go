// Package peers pins, at exact versions, the projects that rail-cni is measured
// and tested against.
//
// The peers live in modules of their own, so that their dependencies never
// enter the module that users build. Two things come out of them:
//
//   - Binaries. The module in plugins/ lists the CNI project's plugins as
//     tools, that in rdma-cni/ the RDMA plugin of the Network Plumbing Working
//     Group, and "make peers" builds them into bin/peers. Tests of the main
//     module find that directory in the environment variable RAIL_CNI_PEERS,
//     and our own binaries in RAIL_CNI_BIN: delegation to foreign IPAM plugins,
//     and the switch-over of a node from the plugins of others, are tested with
//     the real ones. Those that use the API of Kubernetes are in its directory
//     kubernetes: whereabouts, from whereabouts-cni/, and Multus, from multus/
//     by "make multus". There they do not take up space in the rig's machine,
//     which has no such API, and do not hide our plugins on a CNI_PATH. The
//     directory devices has the device plugin of shared-device-plugin/.
//   - Oracles. The tests below whereabouts/ call that project's own packages
//     and compare the answers with ours.
//
// Nothing outside of this directory may import a package of it.
package peers
