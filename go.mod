module github.com/rail-cni/rail-cni

go 1.25.0

require (
	github.com/containernetworking/cni v1.3.1
	golang.org/x/sys v0.35.0
)

require (
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/spf13/cobra v1.9.1 // indirect
	github.com/spf13/pflag v1.0.6 // indirect
	github.com/vishvananda/netlink v1.3.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	go.opentelemetry.io/otel v1.29.0 // indirect
	go.opentelemetry.io/otel/trace v1.29.0 // indirect
	go.yaml.in/yaml/v3 v3.0.4 // indirect
)

tool github.com/containernetworking/cni/cnitool
