// Package sriov reads and sets the settings of virtual functions through their physical function (ip-link(8), "vf").
// The settings are attributes in the kernel's own form, which is also the form in records.
package sriov
