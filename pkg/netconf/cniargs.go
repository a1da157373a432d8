package netconf

import (
	"strings"
	"unicode/utf8"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// Args are the values of CNI_ARGS that the suite uses.
type Args struct {
	PodNamespace string // K8S_POD_NAMESPACE
	PodName      string // K8S_POD_NAME
	PodUID       string // K8S_POD_UID
	MAC          string // MAC
}

// ParseArgs reads CNI_ARGS ("KEY=value;KEY=value"). It ignores other keys and
// their errors: they must not prevent an attachment.
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

// CheckEnv fails for values of the runtime's environment that a record cannot
// store unchanged: JSON text is UTF-8, and a changed key would not be found
// again.
func CheckEnv(values ...string) error {
	for _, v := range values {
		if !utf8.ValidString(v) {
			return failure.New(failure.InvalidEnv, "the runtime's environment has %q, which is not UTF-8", v).Cure("write it in UTF-8")
		}
	}
	return nil
}
