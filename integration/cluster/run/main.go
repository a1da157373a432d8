// Command run starts a cluster of [cluster], prints how to reach it, and ends
// it on SIGINT or SIGTERM. "make cluster" runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/rail-cni/rail-cni/integration/cluster"
	"github.com/rail-cni/rail-cni/integration/scratch"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	nodes := flag.Int("nodes", 2, "how many nodes")
	multus := flag.String("multus", cluster.Thick, "thick, thin or none")
	plugins := flag.String("plugins", "", "directory of our plugins, to be in each node's CNI directory; none when empty")
	images := flag.String("images", "", "archives of images to load, separated by commas")
	at := flag.String("kubeconfig", "", "where to write the administrator's kubeconfig as well; it is removed at the end")
	pidfile := flag.String("pidfile", "", "where to write the number of this process; it is removed at the end")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("%s is not an option", flag.Arg(0))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *pidfile != "" {
		if err := claim(*pidfile); err != nil {
			return err
		}
		defer os.Remove(*pidfile)
	}
	dir, err := scratch.MkdirTemp("cluster")
	if err != nil {
		return err
	}
	defer scratch.Remove(dir)
	o := cluster.Options{Nodes: *nodes, Multus: *multus}
	if *plugins != "" {
		o.Plugins = cluster.OurPlugins(*plugins)
	}
	fmt.Println("starting; this takes about 10 s …")
	c, err := cluster.New(ctx, dir, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if *images != "" {
		if err := c.LoadImage(ctx, strings.Split(*images, ",")...); err != nil {
			return err
		}
	}
	kubeconfig := c.Kubeconfig()
	if *at != "" {
		text, err := os.ReadFile(kubeconfig)
		if err != nil {
			return err
		}
		if kubeconfig, err = filepath.Abs(*at); err != nil {
			return err
		}
		if err := os.WriteFile(kubeconfig, text, 0o600); err != nil {
			return err
		}
		defer os.Remove(kubeconfig)
	}
	fmt.Printf("export KUBECONFIG=%s\nkubectl is %s\n", kubeconfig, c.KubectlPath())
	for _, n := range c.Nodes() {
		fmt.Printf("%s: nsenter -t %d -n -m -p -u\n", n.Name, n.Pid())
	}
	fmt.Printf("images: %s; end it by an interrupt or `kill %d`\n", cluster.ToolsImage, os.Getpid())
	<-ctx.Done()
	fmt.Println("ending")
	return nil
}

// claim writes the number of this process to a file, unless that of another one
// that runs is there.
func claim(pidfile string) error {
	if text, err := os.ReadFile(pidfile); err == nil {
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err == nil && pid > 0 && syscall.Kill(pid, 0) == nil {
			return fmt.Errorf("process %d has a cluster already, says %s: end it by `make cluster-down`", pid, pidfile)
		}
	}
	return os.WriteFile(pidfile, fmt.Appendln(nil, os.Getpid()), 0o600)
}
