package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
)

// envFormats are the values of --format of "railctl env".
var envFormats = []string{"nccl", "ucx", "nvshmem", "vllm", "json", "sh", "topo"}

func newEnv(stateDir *string) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "env NAMESPACE/NAME",
		Short: "Print the settings of NCCL, UCX, NVSHMEM or vLLM for a pod of this node",
		Long: `Print the environment variables for the rails of a pod of this node. The pod's
containers get the same variables by NRI. rail-agent also writes them to
/run/rail-cni/pods/UID. The formats are

  nccl     the variables of NCCL, one KEY=value on each line, as in nccl.conf
  ucx, nvshmem, vllm
           the variables of UCX, of NVSHMEM, or of vLLM, in the same form
  json     all variables that "publish" in the node file asks for, as one object
  sh       all these variables as a script that exports them, as in env.sh
  topo     not variables, but the topology in NCCL's XML, as in topo.xml

If something cannot be read, the command prints the error on stderr and the rest on
stdout, and the exit code is 1.`,
		Example: `  railctl env default/trainer-0 --format nccl
  railctl env default/trainer-0 --format json | jq -r .UCX_NET_DEVICES`,
		Args: cli.OneArg("a pod"),
	}
	cmd.Flags().StringVar(&format, "format", "sh", strings.Join(envFormats, ", "))
	// Fails only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(envFormats, cobra.ShellCompDirectiveNoFileComp))
	named := cli.AddPodNamespace(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !slices.Contains(envFormats, format) {
			return fmt.Errorf("--format is %q; it must be one of %s", format, strings.Join(envFormats, ", "))
		}
		rails, settings, machine, unread, err := railsOf(*stateDir, named(args[0]))
		if err != nil {
			return err
		}
		if err := printEnv(cmd.OutOrStdout(), format, rails, settings, machine); err != nil {
			return err
		}
		return cli.ReportErrors(cmd.ErrOrStderr(), unread)
	}
	return cmd
}

// printEnv prints the settings in one of the formats.
func printEnv(w io.Writer, format string, r *railinfo.Rails, s railinfo.Settings, m railinfo.Machine) error {
	var err error
	switch format {
	case "nccl":
		_, err = w.Write(r.NCCLConf(s))
	case "sh":
		_, err = w.Write(r.EnvSh(s))
	case "topo":
		_, err = w.Write(r.TopoXML(m))
	case "json":
		object := map[string]string{}
		for _, v := range r.Env(s) {
			object[v.Name] = v.Value
		}
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		err = e.Encode(object)
	default:
		s.Env = []railinfo.Family{railinfo.Family(format)}
		for _, v := range r.Env(s) {
			if v.Name != railinfo.ListVar {
				if _, err = fmt.Fprintf(w, "%s=%s\n", v.Name, v.Value); err != nil {
					return err
				}
			}
		}
	}
	return err
}
