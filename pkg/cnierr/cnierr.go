package cnierr

import (
	"errors"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// These are CNI error codes. Codes below 100 come from the specification (CNI SPEC, section 5,
// "Error"). Codes from 100 on belong to this project.
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

// codes has the code of each kind.
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

// Code returns the code of the outermost kind in err's tree. If there is no kind, it returns the
// code of a *types.Error in the tree, which is the answer of another plugin. If there is none
// either, it returns [Internal]. The code is never 0, because a runtime would take 0 for success.
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

// KindOf returns the kind that has this code. If no kind has the code, it returns
// [failure.Internal].
func KindOf(code uint) failure.Kind {
	for kind, c := range codes {
		if c == code {
			return kind
		}
	}
	return failure.Internal
}

// ToCNI converts err into the *types.Error that skel prints. The result has the whole text of err
// and the code that [Code] returns. If err is nil, ToCNI returns nil.
//
// If the text of a failed DEL contains the text of ENOENT, Multus treats the DEL as successful and
// forgets the attachment. So ToCNI replaces the text of ENOENT. It also cuts out the middle of a
// very long text, for example of a text that quotes a user's input.
func ToCNI(err error) error {
	if err == nil {
		return nil
	}
	text := strings.ReplaceAll(err.Error(), unix.ENOENT.Error(), "the file does not exist")
	const maxText = 16 << 10
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText/2], "") + " … " + strings.ToValidUTF8(text[len(text)-maxText/2:], "")
	}
	return types.NewError(Code(err), text, "")
}
