package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// maxInput is the maximum size of the input, in bytes. An object of the API server has less than
// 1.5 MiB.
const maxInput = 4 << 20

// ReadInput reads the file with this name, or stdin.
func ReadInput(stdin io.Reader, name string) ([]byte, error) {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		stdin = f
	}
	text, err := io.ReadAll(io.LimitReader(stdin, maxInput+1))
	if err == nil && len(text) > maxInput {
		err = fmt.Errorf("%s is larger than %d MiB; pass only the ConfigMap", name, maxInput>>20)
	}
	return text, err
}

// AddPodNamespace adds kubectl's flag --namespace to a command whose argument is a pod. It returns
// a function that returns the pod's name with its namespace.
func AddPodNamespace(cmd *cobra.Command) (named func(arg string) string) {
	namespace := cmd.Flags().StringP("namespace", "n", "", "namespace of the pod, if the argument has none")
	return func(arg string) string {
		if *namespace == "" || strings.Contains(arg, "/") {
			return arg
		}
		return *namespace + "/" + arg
	}
}
