// Package bpf lists the BPF programs on a link, and detaches them.
package bpf
