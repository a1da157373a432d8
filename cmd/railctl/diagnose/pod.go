package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/cell"
	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

func newDoctorPod(d *doctorFlags) *cobra.Command {
	var flags doctorFlags
	var j judgeFlags
	cmd := &cobra.Command{
		Use:   "pod NAMESPACE/NAME",
		Short: "Find what is wrong with the rails of a pod of this node",
		Long: `Check a pod of this node that holds a NIC. The rules for pods check its devices,
its limit of locked memory, its GIDs, its environment variables and its GPUs.
Findings of other rules about the pod and its NICs are also listed.

` + exitCodesHelp,
		Example: `  railctl doctor pod default/trainer-0
  railctl doctor pod default/trainer-0 --facts facts.json -v`,
		Args: cli.OneArg("a pod"),
	}
	j.add(cmd, "doctor pod")
	flags.addTo(cmd)
	named := cli.AddPodNamespace(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		flags.stateDir = d.stateDir
		rules, err := j.rules(doctor.Rules())
		if err != nil {
			return err
		}
		f, err := flags.read(cmd)
		if err != nil {
			return err
		}
		results, err := judgePod(rules, f, named(args[0]))
		if err != nil {
			return err
		}
		return j.report(cmd, f, results)
	}
	return cli.WithNode(cmd, &flags.Flags)
}

// judgePod returns the results of the rules for pods about one pod. It also returns the results of
// rules for nodes that found something about the pod or its NICs.
func judgePod(rules []rule.Rule, f *fact.Facts, name string) ([]rule.Result, error) {
	i := slices.IndexFunc(f.Pods, func(p fact.Pod) bool { return p.Namespace+"/"+p.Name == name })
	if i < 0 {
		return nil, noSuchPod(f, name)
	}
	objects := namesOf(f, &f.Pods[i])
	var concerned []rule.Result
	for _, r := range rule.Judge(rule.Select(rules, rule.NodeScope), f) {
		r.Findings = slices.DeleteFunc(r.Findings, func(found rule.Finding) bool {
			return !slices.ContainsFunc(objects, func(o string) bool { return found.Object == o || strings.HasPrefix(found.Object, o+" ") })
		})
		if len(r.Findings) > 0 {
			concerned = append(concerned, r)
		}
	}
	alone := *f
	alone.Pods = f.Pods[i : i+1]
	return append(rule.Judge(rule.Select(rules, rule.PodScope), &alone), concerned...), nil
}

// namesOf returns the names that findings use for the pod and its NICs.
func namesOf(f *fact.Facts, p *fact.Pod) []string {
	objects := []string{p.Object()}
	if f.NICs == nil {
		return objects
	}
	for i := range f.NICs.List.Value {
		n := &f.NICs.List.Value[i]
		master := slices.ContainsFunc(p.Interfaces.Value, func(i fact.Interface) bool { return i.NIC != "" && i.NIC == n.Name })
		if master || n.Holder == p.Namespace+"/"+p.Name {
			objects = append(objects, n.Object())
		}
	}
	return objects
}

// noSuchPod returns the error for a pod that has no facts.
func noSuchPod(f *fact.Facts, name string) error {
	namespace, pod, ok := strings.Cut(name, "/")
	switch {
	case !ok || namespace == "" || pod == "" || strings.Contains(pod, "/"):
		return fmt.Errorf("%s: write it as NAMESPACE/NAME, for example default/%s", cell.Printable(name), strings.ReplaceAll(cell.Printable(name), "/", "-"))
	case f.Ledger != nil && f.Ledger.Attachments.Error != "":
		return fmt.Errorf("pod %s: the pods of the node are unknown: %s", cell.Printable(name), cell.Printable(f.Ledger.Attachments.Error))
	}
	return fmt.Errorf("pod %s holds no NIC on this node; \"railctl show\" lists the attachments", cell.Printable(name))
}
