package machine

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// NodeFiles returns the node file and the files that it names. A file that cannot be parsed is also
// returned, because a rule judges it.
func NodeFiles(context.Context) ([]fact.Config, error) {
	found := []fact.Config{}
	path := nodefile.Path()
	text, err := files.ReadText(path)
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	if err != nil {
		return nil, err
	}
	found = append(found, fact.Config{Kind: fact.NodeFile, Name: path, Text: text})
	file, err := nodefile.Parse([]byte(text))
	if err != nil || file.Resources == nil {
		return found, nil //nolint:nilerr // see above
	}
	for _, f := range []struct {
		kind fact.ConfigKind
		path string
	}{{fact.SharedConfig, file.Resources.SharedConfigFile}, {fact.SRIOVConfig, file.Resources.SRIOVConfigFile}} {
		if f.path == "" {
			continue
		}
		text, err := files.ReadText(f.path)
		if errors.Is(err, os.ErrPermission) {
			return nil, err
		}
		if err == nil { // if the file cannot be read, the inventory reports the problem
			found = append(found, fact.Config{Kind: f.kind, Name: f.path, Text: text})
		}
	}
	return found, nil
}
