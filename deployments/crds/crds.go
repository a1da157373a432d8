// Package crds holds the CustomResourceDefinitions that a cluster needs, one in
// each file: those of whereabouts v0.9.4, under whose names and with whose
// schemas existing pools go on, and that of the Network Plumbing Working Group
// for networks. "kubectl apply -k deployments/crds" gives the former to a cluster,
// the chart gives all that are missing; this package gives them to programs and
// tests. It imports nothing of ours.
package crds

import "embed"

// Files holds the definitions: YAML, one object in each file.
//
//go:embed ippools.yaml nodeslicepools.yaml overlappingrangeipreservations.yaml network-attachment-definitions.yaml
var Files embed.FS
