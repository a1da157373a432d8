//go:build rig

package tests

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// TestPodsSpeakVerbs lends two NICs of one rail, each with a Soft-RoCE device,
// to two pods, and has the usual programmes write from one pod's memory to the
// other's.
func TestPodsSpeakVerbs(t *testing.T) {
	for _, mode := range []rdma.Mode{rdma.Exclusive, rdma.Shared} {
		t.Run(string(mode), func(t *testing.T) {
			n := newRDMANode(t, mode, "rdma=0")
			if err := kmod.SoftRoCE(); errors.Is(err, os.ErrNotExist) {
				t.Skip(err)
			} else if err != nil {
				t.Fatal(err)
			}
			nics := []string{nicName(0), n.spare}
			for i, name := range nics {
				n.Batch(nil, "link set "+name+" mtu 9000 up")
				n.Exec("rdma", "link", "add", fmt.Sprintf("rxe%d", i), "type", "rxe", "netdev", name)
			}
			n.carrier(nics...)
			before, devices := n.State(), n.allRDMA()
			var pods []*pod
			for i, name := range nics {
				p := n.pod(fmt.Sprintf("pod%d", i+1))
				n.MustRun(p.call("ADD", "net1", n.config(0, verbsConfig(name))))
				pods = append(pods, p)
			}
			if left := n.allRDMA(); mode == rdma.Exclusive && len(left) != 0 {
				t.Errorf("still on the host: %v", left)
			}
			for _, programme := range []string{"ibv_rc_pingpong -n 20", "ib_write_bw -n 5 -F --report_gbits"} {
				n.verbs(programme, pods)
			}
			for i, p := range pods {
				n.MustRun(p.call("DEL", "net1", n.config(0, verbsConfig(nics[i]))))
			}
			n.untouched(before)
			if now := n.allRDMA(); !maps.Equal(now, devices) {
				t.Errorf("RDMA devices on the host:\n%v\nbefore:\n%v", now, devices)
			}
		})
	}
}

func verbsConfig(nic string) map[string]any {
	return map[string]any{"device": nic, "rdma": "required", "ipam": map[string]any{"type": "whereabouts", "range": "172.31.1.0/24"}}
}

// allRDMA gives parent and uverbs number of each RDMA device of the host.
func (n *node) allRDMA() map[string]string {
	n.t.Helper()
	core := n.core(n.Netns.Netns)
	devices, err := core.Devices()
	if err != nil {
		n.t.Fatal(err)
	}
	state := map[string]string{}
	for _, d := range devices {
		uverbs, err := core.Uverbs(d)
		if err != nil {
			n.t.Fatal(err)
		}
		state[d.Name] = fmt.Sprintf("%s %s %s", d.NodeGUID, d.ParentDev, uverbs.Name)
	}
	return state
}

// verbs runs a programme as the server in the first pod, and as its client in
// the second, each with the device and the GID index that are recorded.
func (n *node) verbs(programme string, pods []*pod) {
	n.t.Helper()
	began := time.Now()
	var commands []*exec.Cmd
	address := ""
	for _, p := range pods {
		for _, r := range n.records() {
			if r.ContainerID != p.container {
				continue
			}
			gid := r.RDMA.GIDs[0]
			option := map[bool]string{true: "-x", false: "-g"}[strings.HasPrefix(programme, "ib_")]
			words := append([]string{"netns", "exec", p.Name}, strings.Fields(programme)...)
			words = append(words, "-d", gid.Device, option, fmt.Sprint(gid.Index))
			if address != "" {
				words = append(words, address)
			}
			address = gid.Address
			commands = append(commands, exec.CommandContext(n.t.Context(), "ip", words...))
		}
	}
	if len(commands) != 2 {
		n.t.Fatalf("%d of the pods are recorded", len(commands))
	}
	var said [2]bytes.Buffer
	for i, c := range commands {
		c.Stdout, c.Stderr = &said[i], &said[i]
	}
	server, client := commands[0], commands[1]
	if err := server.Start(); err != nil {
		n.t.Fatal(err)
	}
	listening(n.t, pods[0])
	err := client.Run()
	if err != nil {
		_ = server.Process.Kill()
	}
	if err := errors.Join(err, server.Wait()); err != nil {
		n.t.Fatalf("%s: %v\nserver:\n%s\nclient:\n%s", programme, err, said[0].Bytes(), said[1].Bytes())
	}
	lines := strings.Split(strings.Trim(said[1].String(), "-\n"), "\n")
	n.t.Logf("%s, in %v: %s", programme, time.Since(began).Round(time.Millisecond), strings.Join(strings.Fields(lines[len(lines)-1]), " "))
}

// listening waits until a programme in the pod listens on a TCP port, by which
// these programmes tell each other where to write.
func listening(t *testing.T, p *pod) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		found := false
		p.Inside(func() {
			for _, file := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Error(err)
				}
				found = found || bytes.Contains(text, []byte(" 0A ")) // TCP_LISTEN
			}
		})
		if found {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the server does not listen")
		}
	}
}
