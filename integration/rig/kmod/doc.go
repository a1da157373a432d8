// Package kmod loads and unloads modules of the rig's kernel: for the guest's
// first process, and for tests that need other parameters. It runs in the guest
// only, where module files are not compressed.
package kmod
