module github.com/rail-cni/rail-cni

go 1.25.0

require (
	github.com/containernetworking/cni v1.3.1
	golang.org/x/sys v0.35.0
)
