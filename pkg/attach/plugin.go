package attach

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// Plugin is what tells one plugin of the pipeline from another.
type Plugin struct {
	// Name is the plugin's type in a configuration.
	Name string
	// Parse reads the configuration of a call.
	Parse func(args *skel.CmdArgs) (Provision, *netconf.Common, error)
	// Bare is the provision with an empty configuration, for a DEL whose
	// configuration cannot be read.
	Bare Provision
}

// Main runs the plugin as the CNI specification has it: verb and attachment in
// the environment, configuration on stdin, result or error on stdout. build is
// the program's version.
func (p Plugin) Main(build string) {
	skel.PluginMainFuncs(p.Funcs(), version.All, fmt.Sprintf("CNI plugin %s (rail-cni) %s", p.Name, build))
}

// Funcs gives the plugin's verbs.
func (p Plugin) Funcs() skel.CNIFuncs {
	ctx := context.Background()
	return skel.CNIFuncs{
		Add: p.verb(asks, func(n *Node, c *Call, pr Provision) error {
			result, err := n.Add(ctx, c, pr)
			if err != nil {
				return err
			}
			return types.PrintResult(result, c.Conf.CNIVersion)
		}),
		Check:  p.verb(ends, func(n *Node, c *Call, pr Provision) error { return n.Check(ctx, c, pr) }),
		GC:     p.verb(ends, func(n *Node, c *Call, _ Provision) error { return n.GC(ctx, c) }),
		Status: p.verb(asks, func(n *Node, c *Call, pr Provision) error { return n.Status(ctx, c, pr) }),
		Del:    p.del,
	}
}

func (p Plugin) verb(w want, f func(*Node, *Call, Provision) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		pr, conf, err := p.Parse(args)
		if err != nil {
			return cnierr.ToCNI(err)
		}
		return run(args, conf, w, func(n *Node, c *Call) error { return f(n, c, pr) })
	}
}

// del goes on with what can be read of a configuration that has mistakes: it
// must end what an ADD may have begun.
func (p Plugin) del(args *skel.CmdArgs) error {
	pr, conf, err := p.Parse(args)
	if err != nil {
		pr, conf = p.Bare, netconf.Lenient(args.StdinData)
	}
	return run(args, conf, ends, func(n *Node, c *Call) error { return n.Del(context.Background(), c, pr) })
}

// want says whether a verb asks for something of the node, or ends or looks at
// what is there.
type want bool

const (
	asks want = true
	ends want = false
)

// run opens the node for a call. What asks for something gets it only as the
// node file has it. What ends something never depends on that file: it may have
// been changed, or broken, since ADD. A state directory that it does not open
// is then not looked at, because whoever named it could have forged what is in
// it.
func run(args *skel.CmdArgs, conf *netconf.Common, w want, f func(*Node, *Call) error) error {
	if w == asks {
		if err := checkSize(conf); err != nil {
			return cnierr.ToCNI(err)
		}
	}
	file, err := netconf.ReadNodeFile(netconf.NodeFilePath())
	var closed error
	if err == nil {
		closed = file.CheckPath(netconf.KeyStateDir, conf.StateDir)
	}
	if err := errors.Join(err, closed); err != nil && w == asks {
		return cnierr.ToCNI(err)
	}
	if closed != nil {
		conf.StateDir = netconf.DefaultStateDir
	}
	n, err := Open(conf.StateDir)
	if err != nil {
		return cnierr.ToCNI(err)
	}
	defer n.Close()
	if closed != nil {
		n.Log.Warn("state directory closed, records kept", "err", closed)
	}
	n.File = file
	return cnierr.ToCNI(f(n, CallOf(args, conf)))
}

// checkSize fails if the configuration, or the part that a record keeps, is too
// large.
func checkSize(conf *netconf.Common) error {
	if err := netconf.CheckSize(conf.Raw); err != nil {
		return err
	}
	_, err := conf.Kept()
	return err
}
