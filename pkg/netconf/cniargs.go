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

// ParseArgs reads CNI_ARGS ("KEY=value;KEY=value"). It ignores other keys, and errors in them,
// because they must not prevent an attachment.
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

// CheckEnv returns an error if a value from the runtime's environment cannot be stored unchanged in
// a record: JSON text is UTF-8, and a record would not be found again under a changed key.
func CheckEnv(values ...string) error {
	for _, v := range values {
		if !utf8.ValidString(v) {
			return failure.New(failure.InvalidEnv, "the runtime's environment has %q, which is not UTF-8", v).Cure("write the value in UTF-8")
		}
	}
	return nil
}
