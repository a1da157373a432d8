// Package specs pins what the tests of the CNI project's plugins are built from: integration/specs
// builds the suites of host-device and macvlan, and runs them against our programs. The imports
// are those of the suites.
package specs

import (
	// They keep what the suites import in go.mod.
	_ "github.com/containernetworking/cni/pkg/invoke"
	_ "github.com/containernetworking/cni/pkg/types/create"
	_ "github.com/containernetworking/plugins/pkg/ipam"
	_ "github.com/containernetworking/plugins/pkg/testutils"
	_ "github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	_ "github.com/onsi/ginkgo/v2"
	_ "github.com/onsi/gomega"
)
