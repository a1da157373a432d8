package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/cell"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/resource"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

func newRails(stateDir *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rails",
		Short: "Find the rails of this node's NICs",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(newRailsDiscover(stateDir))
	return cmd
}

// discovery is one run of "railctl rails discover", with its flags.
type discovery struct {
	selection string
	file      string
	write     bool
	replace   bool
}

func newRailsDiscover(stateDir *string) *cobra.Command {
	var d discovery
	cmd := &cobra.Command{
		Use:   "discover",
		Short: "Propose the rails of this node for its node file",
		Long: `Propose the key "rails" of the node file. The NICs with RDMA get the rails 0, 1, 2,
… in the order of their PCI addresses. It does not matter whether a NIC is lent at
this moment. Virtual functions get no rail. NICs that may not be lent get no rail
either. They are listed as comments, with the reason.

Compare the order with the cabling before you use the proposal: rail 3 of one node
must reach rail 3 of the other nodes. Nodes of the same model usually have the same
PCI addresses.

--select chooses the NICs by a selector, as in the pools of the node file. --write
adds the rails to the node file and does not change the rest of the file. If the
file already has rails, they are replaced only with --replace. Every ADD reads the
file, so nothing needs a restart.`,
		Example: `  railctl rails discover
  railctl rails discover --select '{vendors: ["15b3"], linkTypes: [ether]}'
  railctl rails discover --write`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&d.selection, "select", "", `selector of the NICs as YAML (default "{rdma: true}")`)
	flags.StringVar(&d.file, "file", "", "node file to write to (default: the node file that the plugins read)")
	flags.BoolVar(&d.write, "write", false, "write the rails to the node file")
	flags.BoolVar(&d.replace, "replace", false, "with --write: replace the rails that are already in the file")
	_ = cmd.MarkFlagFilename("file", "yaml") // fails only for a flag that does not exist
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.RequireRoot(); err != nil {
			return err
		}
		list, err := inventory.NICs(*stateDir)
		if err != nil {
			return err
		}
		if err := d.run(cmd.OutOrStdout(), list.Resource()); err != nil {
			return err
		}
		return cli.ReportErrors(cmd.ErrOrStderr(), list.Errors)
	}
	return cmd
}

// run proposes the rails of the NICs, and prints or writes them.
func (d *discovery) run(out io.Writer, nics []resource.NIC) error {
	if d.replace && !d.write {
		return errors.New("--replace needs --write")
	}
	rails, left, err := d.propose(nics)
	if err != nil {
		return err
	}
	if !d.write {
		_, err := fmt.Fprint(out, rails.YAML()+left)
		return err
	}
	path, err := d.writeTo(rails)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%d rails written to %s\n%s", len(rails.List), path, left)
	return err
}

// propose returns the proposed rails. left has comments about the NICs that get no rail because
// they may not be lent.
func (d *discovery) propose(nics []resource.NIC) (rails *resource.Rails, left string, err error) {
	order := &resource.Rails{Auto: true}
	if d.selection != "" {
		order.Select = &resource.Select{}
		if err := yaml.Unmarshal([]byte(d.selection), order.Select); err != nil {
			return nil, "", fmt.Errorf("--select %s: %w", d.selection, err)
		}
	}
	selected, _ := order.Assign(nics) // the case that nothing was selected is an error below
	var comments strings.Builder
	open := slices.DeleteFunc(slices.Clone(nics), func(n resource.NIC) bool {
		_, is := selected[n.PCI]
		if is && n.Protected != "" {
			fmt.Fprintf(&comments, "# no rail: %s: %s\n", noteOf(&n), oneLine(n.Protected))
		}
		return !is || n.Protected != "" || n.LinkType == ""
	})
	byPCI, problems := order.Assign(open)
	if len(byPCI) == 0 {
		cure := `"railctl nics" lists the NICs; a NIC has RDMA once its driver is loaded`
		if comments.Len() > 0 {
			cure = "none of the selected NICs may be lent:\n" + strings.TrimSuffix(comments.String(), "\n")
		}
		return nil, "", errors.New("no NIC of this node can have a rail; " + cure)
	}
	for _, p := range problems {
		return nil, "", errors.New(p.Message)
	}
	rails = &resource.Rails{}
	for i := range open {
		n := &open[i]
		if rail, ok := byPCI[n.PCI]; ok && !slices.ContainsFunc(rails.List, func(r resource.Rail) bool { return r.PCI == n.PCI }) {
			rails.List = append(rails.List, resource.Rail{ID: rail, PCI: n.PCI, Note: noteOf(n)})
		}
	}
	slices.SortFunc(rails.List, func(a, b resource.Rail) int { return a.ID - b.ID })
	return rails, comments.String(), nil
}

// noteOf returns a description of the NIC for people. It is escaped, because a pod may have chosen
// the NIC's name.
func noteOf(n *resource.NIC) string {
	words := []string{n.PCI}
	if len(n.Names) > 0 {
		words = []string{n.Names[0]}
	}
	for i := range words {
		words[i] = cell.Printable(words[i])
	}
	return strings.Join(append(words, n.RDMA...), ", ")
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// writeTo adds the rails to the node file, and returns the file's path.
func (d *discovery) writeTo(rails *resource.Rails) (string, error) {
	path := d.file
	if path == "" {
		path = nodefile.Path()
		if path == nodefile.InstalledPath {
			return "", fmt.Errorf("%s is rail-agent's copy of the chart's value nodeFile: rail-agent would overwrite the rails; add them to that value, or write a file for this node only with --file %s", path, nodefile.DefaultPath)
		}
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	mode := fs.FileMode(0o644)
	var old []byte
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is not a regular file; name a regular file with --file", path)
	default:
		mode = info.Mode().Perm()
		if old, err = nodefile.ReadFile(path); err != nil {
			return "", err
		}
	}
	text, err := withRails(old, rails.YAML(), d.replace)
	if err != nil {
		return "", fmt.Errorf("node file %s: %w", path, err)
	}
	dir, err := statefile.Open(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	defer dir.Close()
	if err := dir.Write(filepath.Base(path), text); err != nil {
		return "", err
	}
	return path, os.Chmod(path, mode)
}

// railsKey is the key of the node file that contains the rails.
const railsKey = "rails"

// withRails returns the text of the node file old with the rails. rails is the key and its value as
// YAML. All other lines stay unchanged. withRails returns an error if the file already has rails
// and replace is false.
func withRails(old []byte, rails string, replace bool) ([]byte, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(old, &document); err != nil {
		return nil, err
	}
	first, behind, err := linesOfRails(old, &document)
	if err != nil {
		return nil, err
	}
	lines := slices.Collect(strings.Lines(string(old)))
	if first < len(lines) && !replace {
		return nil, errors.New("it already has rails; compare them with the output of \"railctl rails discover\", and add --replace to replace them")
	}
	if first > 0 && !strings.HasSuffix(lines[first-1], "\n") {
		lines[first-1] += "\n"
	}
	text := []byte(strings.Join(lines[:first], "") + rails + strings.Join(lines[behind:], ""))
	if _, err := nodefile.Parse(text); err != nil {
		return nil, fmt.Errorf("the file would be invalid with these rails: %w", err)
	}
	if !sameBut(old, text, railsKey) {
		return nil, errors.New("other keys are on the same lines as the key \"rails\"; write each key on its own line, or edit the file yourself")
	}
	return text, nil
}

// linesOfRails returns the lines of the key rails: the index of its first line, and the index of
// the line after its last line. If there is no such key, both are the number of lines in the text.
func linesOfRails(text []byte, document *yaml.Node) (first, behind int, err error) {
	lines := slices.Collect(strings.Lines(string(text)))
	if len(document.Content) == 0 { // the file is empty or has only comments
		return len(lines), len(lines), nil
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode || root.Style&yaml.FlowStyle != 0 && len(root.Content) > 0 {
		return 0, 0, errors.New("not every key is at the beginning of a line; move each key to the beginning of a line, or edit the file yourself")
	}
	first, behind = len(lines), len(lines)
	for i := 0; i < len(root.Content); i += 2 {
		line := root.Content[i].Line - 1
		switch {
		case root.Content[i].Value == railsKey:
			first = line
		case first < len(lines) && behind == len(lines):
			behind = line
		}
	}
	// Comments before the next key belong to that key.
	for behind > first+1 && first < len(lines) && isComment(lines[behind-1]) {
		behind--
	}
	return first, behind, nil
}

// isComment reports whether a line is empty, or is a comment at the beginning of the line.
func isComment(line string) bool {
	return strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#")
}

// sameBut reports whether two texts have the same keys and values, except for the given key.
func sameBut(a, b []byte, key string) bool {
	var values [2]map[string]any
	for i, text := range [][]byte{a, b} {
		if yaml.Unmarshal(text, &values[i]) != nil {
			return false
		}
		delete(values[i], key)
	}
	return len(values[0]) == 0 && len(values[1]) == 0 || reflect.DeepEqual(values[0], values[1])
}
