// Package sriov reads and sets the settings of virtual functions through their physical function (ip-link(8), "vf").
// Settings are attributes in the kernel's own form, as records have them.
package sriov
