// Package opensm runs OpenSM, the subnet manager, in the rig's machine with InfiniBand HCAs
// (module parameter link_layer=ib). Without one no port becomes active.
package opensm
