// Command run starts a cluster of [cluster], prints how to reach it, and ends
// it on SIGINT or SIGTERM. "make cluster" runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
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
	var images []string
	flag.Func("images", "archives of images to load, separated by commas; may be repeated", func(list string) error {
		images = append(images, strings.Split(list, ",")...)
		return nil
	})
	var rails chart
	flag.StringVar(&rails.dir, "chart", "", "directory of rail-cni's chart, to install; none when empty")
	flag.StringVar(&rails.tag, "tag", "", "tag of the chart's image, one of those in -images")
	flag.StringVar(&rails.helm, "helm", "helm", "path of helm")
	kubeconfigFile := flag.String("kubeconfig", "", "where to write the administrator's kubeconfig as well; it is removed at the end")
	pidfile := flag.String("pidfile", "", "where to write the number of this process; it is removed at the end")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("%s is not an option", flag.Arg(0))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *pidfile != "" {
		if err := cluster.Claim(*pidfile); err != nil {
			return err
		}
		defer os.Remove(*pidfile)
	}
	dir, err := scratch.MkdirTemp("cluster")
	if err != nil {
		return err
	}
	defer scratch.Remove(dir)
	o := cluster.Options{Nodes: *nodes, Multus: *multus, Hardware: true}
	if *plugins != "" {
		o.Plugins = cluster.OurPlugins(*plugins)
	}
	fmt.Println("starting; this takes about 10 s …")
	c, err := cluster.New(ctx, dir, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := c.LoadImage(ctx, images...); err != nil {
		return err
	}
	kubeconfig := c.Kubeconfig()
	if *kubeconfigFile != "" {
		if kubeconfig, err = copied(kubeconfig, *kubeconfigFile); err != nil {
			return err
		}
		defer os.Remove(kubeconfig)
	}
	if rails.dir != "" {
		fmt.Println("installing rail-cni by its chart …")
		if err := rails.install(ctx, dir, c.Kubeconfig()); err != nil {
			return fmt.Errorf("%w\n%s", err, c.Report())
		}
	}
	next(c, kubeconfig, rails.dir != "")
	<-ctx.Done()
	fmt.Println("ending")
	return nil
}

// next prints what can be done with the cluster.
func next(c *cluster.Cluster, kubeconfig string, withChart bool) {
	for _, n := range c.Nodes() {
		fmt.Printf("%s: nsenter -t %d -n -m -p -u\n", n.Name, n.Pid())
	}
	fmt.Printf("images: %s, %s\n", cluster.ToolsImage, cluster.BusyboxImage)
	fmt.Printf("The cluster is ready. In another terminal:\n\n  export KUBECONFIG=%s PATH=%s:$PATH\n", kubeconfig, filepath.Dir(c.KubectlPath()))
	if withChart {
		fmt.Println("  kubectl apply -f examples/try\n  kubectl wait --for=condition=Ready --timeout=2m pod --all")
	} else {
		fmt.Println("  kubectl get nodes")
	}
	fmt.Printf("  make cluster-down\n\nAn interrupt or `kill %d` ends it, too.\n", os.Getpid())
}

// copied copies the kubeconfig, and returns the absolute path of the copy.
func copied(kubeconfig, to string) (string, error) {
	text, err := os.ReadFile(kubeconfig)
	if err != nil {
		return "", err
	}
	if to, err = filepath.Abs(to); err != nil {
		return "", err
	}
	return to, os.WriteFile(to, text, 0o600)
}

// chart is rail-cni's chart, as a user installs it.
type chart struct{ dir, tag, helm string }

// install installs the chart, and waits until all nodes have the plugins. helm's caches are in
// the directory.
func (ch chart) install(ctx context.Context, dir, kubeconfig string) error {
	args := []string{"install", "rail-cni", ch.dir, "--namespace", "kube-system", "--wait", "--timeout", "3m"}
	if ch.tag != "" {
		args = append(args, "--set-string", "image.tag="+ch.tag)
	}
	cmd := exec.CommandContext(ctx, ch.helm, args...)
	cmd.Env = append(os.Environ(), "HOME="+dir, "KUBECONFIG="+kubeconfig)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("helm %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
