package testnet

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// OpenNodeFile is a node file that allows all paths: the tests' state
// directories and kubeconfigs are temporary. Each program that imports this
// package uses it, and so do the plugins that it starts with its environment.
var OpenNodeFile = filepath.Join(os.TempDir(), fmt.Sprintf("rail-cni-tests-%d.yaml", os.Geteuid()))

// OpenNodeFileEnv is the variable for an environment that is not the test's
// own.
var OpenNodeFileEnv = nodefile.PathEnv + "=" + OpenNodeFile

func init() {
	if os.Getenv(nodefile.PathEnv) != "" {
		return
	}
	// Several programs may do this concurrently.
	tmp, err := os.CreateTemp("", "rail-cni-tests")
	if err == nil {
		_, err = tmp.WriteString("paths: [\"/**\"]\n")
	}
	if err == nil {
		err = tmp.Close()
	}
	if err == nil {
		err = os.Rename(tmp.Name(), OpenNodeFile)
	}
	if err == nil {
		err = os.Setenv(nodefile.PathEnv, OpenNodeFile)
	}
	if err != nil {
		panic(err)
	}
}
