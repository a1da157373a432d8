package netconf

import (
	"strings"
	"unicode/utf8"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// Args is what the suite reads of CNI_ARGS.
type Args struct {
	PodNamespace string // K8S_POD_NAMESPACE
	PodName      string // K8S_POD_NAME
	PodUID       string // K8S_POD_UID
	MAC          string // MAC
}

// ParseArgs reads CNI_ARGS ("KEY=value;KEY=value"). Keys that it does not know
// are left to those who do: a NIC is lent whatever else the runtime says.
func ParseArgs(s string) Args {
	var a Args
	fields := map[string]*string{
		"K8S_POD_NAMESPACE": &a.PodNamespace, "K8S_POD_NAME": &a.PodName, "K8S_POD_UID": &a.PodUID, "MAC": &a.MAC,
	}
	for _, pair := range strings.Split(s, ";") {
		if key, value, ok := strings.Cut(pair, "="); ok {
			if to := fields[key]; to != nil {
				*to = value
			}
		}
	}
	return a
}

// CheckEnv fails for values of the runtime's environment that no record can
// keep as they are: JSON has no other text than UTF-8, and what comes back
// changed is not found again.
func CheckEnv(values ...string) error {
	for _, v := range values {
		if !utf8.ValidString(v) {
			return failure.WithCure(failure.New(failure.InvalidEnv, "the runtime's environment says %q, which is no UTF-8", v), "write it in UTF-8")
		}
	}
	return nil
}
