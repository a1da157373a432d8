package owners

import (
	"bytes"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"
)

// Router is FRRouting with BGP on a host.
type Router struct {
	*Host
	zebra, bgpd *Daemon
}

// NewRouter starts FRRouting with a configuration of bgpd.
func NewRouter(h *Host, config string) *Router {
	h.t.Helper()
	r := &Router{Host: h}
	h.Write("zebra.conf", "zebra nexthop-group keep 1\n")
	h.Write("bgpd.conf", config)
	r.Begin()
	return r
}

// Begin starts the daemons.
func (r *Router) Begin() {
	r.t.Helper()
	r.zebra = r.start("zebra")
	r.bgpd = r.start("bgpd")
}

func (r *Router) start(name string) *Daemon {
	r.t.Helper()
	d := r.Start("usr/lib/frr/"+name, "-f", filepath.Join(r.dir, name+".conf"), "-i", "/run/frr/"+name+".pid", "-z", "/run/frr/zserv.api",
		"--vty_socket", "/run/frr", "-u", "root", "-g", "root", "--log", "stdout")
	d.await(name, func() bool { return r.command(name, "show version") == nil })
	return d
}

// Stop ends the daemons as their service does.
func (r *Router) Stop() {
	r.bgpd.Stop()
	r.zebra.Stop()
}

// Configure sends bgpd these lines of configuration.
func (r *Router) Configure(lines ...string) {
	r.t.Helper()
	if err := r.command("bgpd", append([]string{"enable", "configure terminal"}, lines...)...); err != nil {
		r.t.Fatal(err)
	}
}

// command sends a daemon commands by its socket, as vtysh does: a command ends with a zero, the
// answer with three and a status.
func (r *Router) command(name string, commands ...string) error {
	c, err := net.DialTimeout("unix", filepath.Join(r.dir, "run/frr", name+".vty"), Patience)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(Patience)); err != nil {
		return err
	}
	for _, command := range commands {
		if _, err := c.Write(append([]byte(command), 0)); err != nil {
			return err
		}
		var output []byte
		for len(output) < 4 || !bytes.Equal(output[len(output)-4:len(output)-1], []byte{0, 0, 0}) {
			some := make([]byte, 4096)
			n, err := c.Read(some)
			if err != nil {
				return fmt.Errorf("%s, %q: %w", name, command, err)
			}
			output = append(output, some[:n]...)
		}
		if output[len(output)-1] != 0 && !strings.HasPrefix(command, "show") {
			return fmt.Errorf("%s, %q: status %d: %s", name, command, output[len(output)-1], output[:len(output)-4])
		}
	}
	return nil
}
