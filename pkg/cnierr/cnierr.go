package cnierr

import (
	"errors"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// CNI error codes. Those below 100 are the specification's (CNI SPEC, section
// 5, "Error"); those from 100 on are this project's.
const (
	UnknownContainer = types.ErrUnknownContainer
	InvalidEnv       = types.ErrInvalidEnvironmentVariables
	IO               = types.ErrIOFailure
	Decode           = types.ErrDecodingFailure
	InvalidConfig    = types.ErrInvalidNetworkConfig
	InvalidNetns     = types.ErrInvalidNetNS
	TryAgain         = types.ErrTryAgainLater
	NotAvailable     = types.ErrPluginNotAvailable
	Limited          = types.ErrLimitedConnectivity
	Internal         = types.ErrInternal

	NICNotFound  uint = 100
	NICProtected uint = 101
	NICLent      uint = 102
	NameTaken    uint = 103
	NotReturned  uint = 104
	IPAM         uint = 105
	BadRecord    uint = 106
	Mismatch     uint = 107
	Kernel       uint = 108
)

// codes has the code of every kind.
var codes = map[failure.Kind]uint{
	failure.UnknownContainer: UnknownContainer,
	failure.InvalidEnv:       InvalidEnv,
	failure.IO:               IO,
	failure.Decode:           Decode,
	failure.InvalidConfig:    InvalidConfig,
	failure.InvalidNetns:     InvalidNetns,
	failure.TryAgain:         TryAgain,
	failure.NotAvailable:     NotAvailable,
	failure.Limited:          Limited,
	failure.Internal:         Internal,
	failure.NICNotFound:      NICNotFound,
	failure.NICProtected:     NICProtected,
	failure.NICLent:          NICLent,
	failure.NameTaken:        NameTaken,
	failure.NotReturned:      NotReturned,
	failure.IPAM:             IPAM,
	failure.BadRecord:        BadRecord,
	failure.Mismatch:         Mismatch,
	failure.Kernel:           Kernel,
}

// Code returns the code of the outermost kind in err's tree, or else of a *types.Error
// in it (another plugin's answer), or else [Internal]. It is never 0, which a runtime
// would take for success.
func Code(err error) uint {
	var kind failure.Kind
	if errors.As(err, &kind) {
		return codes[kind]
	}
	var theirs *types.Error
	if errors.As(err, &theirs) && theirs.Code != 0 {
		return theirs.Code
	}
	return Internal
}

// KindOf returns the kind that has this code, or [failure.Internal] if none has it.
func KindOf(code uint) failure.Kind {
	for kind, c := range codes {
		if c == code {
			return kind
		}
	}
	return failure.Internal
}

// ToCNI converts err into the *types.Error that skel prints, with the whole
// text and the code of the outermost coded error in it. It returns nil for nil.
//
// Multus treats a failed DEL as a success if its text contains that of ENOENT,
// and forgets the attachment; so ToCNI replaces that text. It cuts the middle
// out of a very long text, for example one that quotes a user's input.
func ToCNI(err error) error {
	if err == nil {
		return nil
	}
	text := strings.ReplaceAll(err.Error(), unix.ENOENT.Error(), "the file does not exist")
	const longest = 16 << 10
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest/2], "") + " … " + strings.ToValidUTF8(text[len(text)-longest/2:], "")
	}
	return types.NewError(Code(err), text, "")
}
