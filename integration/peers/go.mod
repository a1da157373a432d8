module github.com/rail-cni/rail-cni/integration/peers

go 1.25.5

replace github.com/rail-cni/rail-cni => ../..

require (
	github.com/k8snetworkplumbingwg/whereabouts v0.9.4
	github.com/rail-cni/rail-cni v0.0.0
)

require (
	github.com/Masterminds/semver/v3 v3.4.0 // indirect
	github.com/google/pprof v0.0.0-20250820193118-f64d9cf942d6 // indirect
	github.com/onsi/ginkgo/v2 v2.25.1 // indirect
)

require (
	github.com/containernetworking/cni v1.3.1 // indirect
	github.com/imdario/mergo v0.3.16 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	go.yaml.in/yaml/v3 v3.0.5
	golang.org/x/sys v0.46.0 // indirect
	golang.org/x/tools v0.47.0 // indirect
	k8s.io/utils v0.0.0-20251002143259-bc988d571ff4 // indirect
)
