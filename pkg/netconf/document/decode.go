package document

import (
	"encoding"
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// Decode decodes a document, such as "the network configuration". Its errors name types as JSON
// names them, not as Go does.
func Decode(data []byte, into any, document string) error {
	err := json.Unmarshal(data, into)
	var form *json.SyntaxError
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &form):
		return failure.From(err, failure.Decode, "%s is not a JSON object", document).Cure("correct the JSON")
	case !errors.As(err, &wrong):
		return failure.Wrap(err, failure.Decode, "%s", document)
	}
	key := "the whole"
	if wrong.Field != "" {
		key = wrong.Field
		for _, embedded := range []string{"HostDevice.", "Common.", "RDMA.", "Link.", "Routing.", "Attachments."} { // users do not know the names of these types
			key = strings.TrimPrefix(key, embedded)
		}
		key = strconv.Quote(key)
	}
	return failure.New(failure.Decode, "%s: %s cannot be %s %s", document, key, article(wrong.Value), wrong.Value).Cure("write it as %s", jsonName(wrong.Type))
}

func jsonName(t reflect.Type) string {
	if t.Implements(fromText) || reflect.PointerTo(t).Implements(fromText) {
		return "a string"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Uint32:
		return "a whole number"
	case reflect.Slice, reflect.Array:
		return "a list"
	default:
		return "an object"
	}
}

var fromText = reflect.TypeFor[encoding.TextUnmarshaler]()

func article(what string) string {
	if strings.HasPrefix(what, "a") || strings.HasPrefix(what, "o") {
		return "an"
	}
	return "a"
}
