// Package crds holds the CustomResourceDefinitions that a cluster needs, one in
// each file: those of whereabouts v0.9.4, with the same names and schemas, so
// that existing pools stay valid, and that of the Network Plumbing Working
// Group for networks. "kubectl apply -k deployments/crds" applies the former,
// the chart applies all that are missing; programs and tests import this
// package. It imports nothing of ours.
package crds

import "embed"

// Files holds the definitions: YAML, one object in each file.
//
//go:embed ippools.yaml nodeslicepools.yaml overlappingrangeipreservations.yaml network-attachment-definitions.yaml
var Files embed.FS
