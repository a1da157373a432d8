package ipamconf

import (
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// whereaboutsArgs are the keys of CNI_ARGS that the plugin knows. The names of the fields are the
// keys, because types.LoadArgs finds the fields by name.
type whereaboutsArgs struct {
	types.CommonArgs
	IP                         types.UnmarshallableString
	GATEWAY                    types.UnmarshallableString
	MAC                        types.UnmarshallableString
	K8S_POD_NAMESPACE          types.UnmarshallableString
	K8S_POD_NAME               types.UnmarshallableString
	K8S_POD_UID                types.UnmarshallableString
	K8S_POD_INFRA_CONTAINER_ID types.UnmarshallableString
}

func parseWhereaboutsArgs(cniArgs string) (whereaboutsArgs, error) {
	var args whereaboutsArgs
	err := types.LoadArgs(cniArgs, &args)
	return args, failure.From(err, failure.InvalidEnv, "CNI_ARGS").
		Cure("write CNI_ARGS as KEY=VALUE;KEY=VALUE, with IgnoreUnknown=true if it contains other keys")
}

func (a whereaboutsArgs) pod() WhereaboutsPod {
	return WhereaboutsPod{
		Namespace: string(a.K8S_POD_NAMESPACE),
		Name:      string(a.K8S_POD_NAME),
		UID:       string(a.K8S_POD_UID),
	}
}

// addStatic adds the addresses of IP=. It sets each gateway of GATEWAY= on every static address
// whose subnet contains the gateway. It skips addresses that are also requested in runtimeConfig,
// because Multus passes a pod's "ips" in both places.
func (a whereaboutsArgs) addStatic(c *Whereabouts) error {
	if a.IP != "" {
		for item := range strings.SplitSeq(string(a.IP), ",") {
			bare, _, _ := strings.Cut(strings.TrimSpace(item), "/")
			if addr, ok := sloppyAddr(bare); ok && slices.Contains(c.Requested, addr) {
				continue
			}
			p, ok := sloppyPrefix(strings.TrimSpace(item))
			if !ok {
				return failure.New(failure.InvalidEnv, "invalid CIDR %s in IP of CNI_ARGS", strings.TrimSpace(item)).Cure("write it as address/length")
			}
			c.Static = append(c.Static, WhereaboutsStatic{Address: p})
		}
	}
	if a.GATEWAY == "" {
		return nil
	}
	for item := range strings.SplitSeq(string(a.GATEWAY), ",") {
		gw, ok := sloppyAddr(strings.TrimSpace(item))
		if !ok {
			return failure.New(failure.InvalidEnv, "invalid gateway address %s in CNI_ARGS", item).Cure("give an address, without a prefix length")
		}
		for i := range c.Static {
			if c.Static[i].Address.Contains(gw) {
				c.Static[i].Gateway = gw
			}
		}
	}
	return nil
}
