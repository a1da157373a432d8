package attachment

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netconf/document"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// Plugin has everything in which one plugin differs from another.
type Plugin struct {
	// Name is the plugin's type in a configuration.
	Name string
	// Parse reads the configuration of a call.
	Parse func(args *skel.CmdArgs) (*Plan, *netconf.Common, error)
	// Bare is the plan of an empty configuration. A DEL uses it if its configuration
	// cannot be read.
	Bare *Plan
	// Order is the order in which the parts of all plugins are released.
	Order ReleaseOrder
}

// Main runs the plugin according to the CNI specification. It reads the verb and the attachment
// from the environment and the configuration from stdin, and writes the result or the error to
// stdout. build is the program's version.
func (p Plugin) Main(build string) {
	skel.PluginMainFuncs(p.Funcs(), version.All, fmt.Sprintf("CNI plugin %s (rail-cni) %s", p.Name, build))
}

// Funcs returns the functions for the plugin's verbs.
func (p Plugin) Funcs() skel.CNIFuncs {
	ctx := context.Background()
	return skel.CNIFuncs{
		Add: p.verb(asks, func(n *Node, c *Call, plan *Plan) error {
			result, err := n.Add(ctx, c, plan)
			if err != nil {
				return err
			}
			_, err = os.Stdout.Write(append(result, '\n'))
			return err
		}),
		Check:  p.verb(ends, func(n *Node, c *Call, plan *Plan) error { return n.Check(ctx, c, plan) }),
		GC:     p.verb(ends, func(n *Node, c *Call, _ *Plan) error { return n.GC(ctx, c) }),
		Status: p.verb(asks, func(n *Node, c *Call, plan *Plan) error { return n.Status(ctx, c, plan) }),
		Del:    p.del,
	}
}

func (p Plugin) verb(w want, f func(*Node, *Call, *Plan) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		plan, conf, err := p.Parse(args)
		if err != nil {
			return cnierr.ToCNI(err)
		}
		return p.run(args, conf, w, func(n *Node, c *Call) error { return f(n, c, plan) })
	}
}

// del ends an attachment. If the configuration has mistakes, del uses the part of it that can be
// read, because a DEL must end whatever an ADD may have begun.
func (p Plugin) del(args *skel.CmdArgs) error {
	plan, conf, err := p.Parse(args)
	if err != nil {
		plan, conf = p.Bare, netconf.Lenient(args.StdinData)
	}
	return p.run(args, conf, ends, func(n *Node, c *Call) error { return n.Del(context.Background(), c, plan) })
}

// want is true for ADD and STATUS, the verbs that need a NIC of the node. It is false for the verbs
// that end or compare an attachment.
type want bool

const (
	asks want = true
	ends want = false
)

// run opens the node and calls f. ADD and STATUS need a supported kernel and the permission of the
// node file. The other verbs work without these: an earlier version of the plugin may have lent the
// NIC on this kernel, and the node file may have been changed or damaged since the ADD. But no verb
// reads a state directory that the node file has always forbidden, because the records there may be
// forged.
func (p Plugin) run(args *skel.CmdArgs, conf *netconf.Common, w want, f func(*Node, *Call) error) error {
	if w == asks {
		if err := checkSize(conf); err != nil {
			return cnierr.ToCNI(err)
		}
	}
	file, err := nodefile.Read(nodefile.Path())
	var closed error
	if err == nil {
		paths := file
		if w == ends {
			paths = file.Ending()
		}
		closed = paths.CheckPath(nodefile.KeyStateDir, conf.StateDir)
	}
	if err := errors.Join(err, closed); err != nil && w == asks {
		return cnierr.ToCNI(err)
	}
	if closed != nil {
		conf.StateDir = nodefile.DefaultStateDir
	}
	n, err := Open(conf.StateDir, p.Order)
	if err != nil {
		return cnierr.ToCNI(err)
	}
	defer n.Close()
	if closed != nil {
		n.Log.Warn("node file does not permit the state directory of the network, so the records in it are kept", "err", closed)
	}
	n.File = file
	if w == asks {
		err = link.CheckKernel(n.Netns)
	}
	if err == nil {
		err = f(n, callOf(args, conf))
	}
	return cnierr.ToCNI(err)
}

// checkSize returns an error if the configuration, or the part of it that a record keeps, is too
// large.
func checkSize(conf *netconf.Common) error {
	if err := document.CheckSize(conf.Raw); err != nil {
		return err
	}
	_, err := conf.Kept()
	return err
}
