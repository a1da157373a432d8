package doctor

import (
	"slices"

	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/doctor/rules/cluster"
	"github.com/rail-cni/rail-cni/pkg/doctor/rules/configs"
	"github.com/rail-cni/rail-cni/pkg/doctor/rules/host"
	"github.com/rail-cni/rail-cni/pkg/doctor/rules/nics"
	"github.com/rail-cni/rail-cni/pkg/doctor/rules/pods"
	"github.com/rail-cni/rail-cni/pkg/doctor/rules/software"
)

// Rules returns all rules in the order in which reports show them. Their IDs are unique.
func Rules() []rule.Rule {
	return slices.Concat(host.Rules(), nics.Rules(), software.Rules(), pods.Rules(), configs.Rules(), cluster.Rules())
}
