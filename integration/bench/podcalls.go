package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// These rows show the share of CNI calls in a pod's time, and of each plugin:
// the calls of one pod alone, made as a runtime makes them, without a kubelet,
// a runtime or other pods. The time that Multus takes beyond the plugins that
// it runs is its own.

// callRow is a pod's network, attached by Multus or by calls of the plugins
// themselves.
type callRow struct {
	Title  string    `json:"title"`
	Add    []float64 `json:"addMs"` // of each round, all calls together
	Del    []float64 `json:"delMs"`
	AddCPU []float64 `json:"addCPUMs"` // of the processes, not of API server and etcd
	DelCPU []float64 `json:"delCPUMs"`
	calls  []cniCall // in the order of ADD
}

// cniCall is one call of a plugin, without its verb.
type cniCall struct {
	plugin, ifName, pod string
	conf                []byte
}

// callRounds is the number of turns of each row: a call is cheap beside a pod.
// A pause precedes each, because the kernel still works on the one before.
const (
	callRounds = 10
	callPause  = 300 * time.Millisecond
)

// callPod returns the name of the pod that has the suite's networks.
func callPod(s suite) string { return "calls-" + s.id }

// callNetns is the pod's network namespace, in the node's mount namespace.
const callNetns = "/run/netns/bench-calls"

// callRows returns the measured rows: the default network alone, and with the
// rails of each suite.
func (l *podLab) callRows(sc scene) ([]*callRow, error) {
	first, err := l.firstNetwork()
	if err != nil {
		return nil, err
	}
	multus, err := os.ReadFile(l.Node(0).CNIConf() + "/00-multus.conf")
	if err != nil {
		return nil, err
	}
	var rows []*callRow
	for _, s := range sc.suites {
		pod := callPod(s)
		title := "the default network (bridge, host-local)"
		alone := []cniCall{{"bridge", "eth0", pod, first}}
		if s != noRails {
			title = fmt.Sprintf("the %d rails, %s", len(sc.rails), s.title)
			alone = nil
			for i, rail := range sc.rails {
				alone = append(alone, cniCall{s.prefix + sc.plugin, fmt.Sprint("net", i+1), pod, []byte(encoded(s.network(sc, rail)))})
			}
		}
		rows = append(rows, &callRow{Title: title, calls: alone})
		title = "by Multus: the default network"
		if s != noRails {
			title += fmt.Sprintf(" and the %d rails, %s", len(sc.rails), s.title)
		}
		rows = append(rows, &callRow{Title: title, calls: []cniCall{{"multus", "eth0", pod, multus}}})
	}
	return rows, nil
}

// firstNetwork returns the configuration of the default network's only plugin.
func (l *podLab) firstNetwork() ([]byte, error) {
	text, err := os.ReadFile(l.Node(0).Path("/etc/cni/multus/net.d/10-cluster.conflist"))
	if err != nil {
		return nil, err
	}
	var list struct {
		CNIVersion, Name string
		Plugins          []map[string]any
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	if len(list.Plugins) != 1 {
		return nil, fmt.Errorf("the default network has %d plugins, not one: %s", len(list.Plugins), text)
	}
	list.Plugins[0]["cniVersion"], list.Plugins[0]["name"] = list.CNIVersion, list.Name
	return []byte(encoded(list.Plugins[0])), nil
}

// measureCalls measures the rows in turn.
func (l *podLab) measureCalls(ctx context.Context, rows []*callRow, rounds int) error {
	n := l.Node(0)
	if _, err := n.Exec(ctx, "ip", "netns", "add", filepath.Base(callNetns)); err != nil {
		return err
	}
	for _, s := range lentScene.suites {
		// Multus only reads the pod's networks from it, so no scheduler is
		// needed.
		p := pod(callPod(s), s, lentScene, n, "nobody")
		if err := answered(l.Admin().Create(ctx, podsPath, p)); err != nil {
			return err
		}
	}
	for round := range rounds + 1 {
		for i := range rows {
			row := rows[(i+round)%len(rows)]
			if err := l.quiet(ctx, callPause); err != nil {
				return err
			}
			if err := l.callBoth(ctx, row, round > 0); err != nil { // the first makes the pools
				return fmt.Errorf("%s: %w", row.Title, err)
			}
		}
	}
	if _, err := n.Exec(ctx, "ip", "netns", "delete", filepath.Base(callNetns)); err != nil {
		return err
	}
	return answered(l.Admin().Delete(ctx, podsPath+"?gracePeriodSeconds=0"))
}

// callBoth adds and deletes a pod's network.
func (l *podLab) callBoth(ctx context.Context, row *callRow, counts bool) error {
	var add, addCPU, del, delCPU time.Duration
	for _, c := range row.calls {
		wall, cpu, err := l.call(ctx, "ADD", c)
		if err != nil {
			return err
		}
		add, addCPU = add+wall, addCPU+cpu
	}
	for i := len(row.calls) - 1; i >= 0; i-- {
		wall, cpu, err := l.call(ctx, "DEL", row.calls[i])
		if err != nil {
			return err
		}
		del, delCPU = del+wall, delCPU+cpu
	}
	if counts {
		row.Add, row.AddCPU = append(row.Add, milliseconds(add)), append(row.AddCPU, milliseconds(addCPU))
		row.Del, row.DelCPU = append(row.Del, milliseconds(del)), append(row.DelCPU, milliseconds(delCPU))
	}
	return nil
}

// call calls a plugin on the first node. The time includes nsenter, about 2 ms.
func (l *podLab) call(ctx context.Context, verb string, c cniCall) (wall, cpu time.Duration, err error) {
	cmd := l.Node(0).Command(ctx, "/opt/cni/bin/"+c.plugin)
	cmd.Env = []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + c.pod, "CNI_NETNS=" + callNetns, "CNI_IFNAME=" + c.ifName, "CNI_PATH=/opt/cni/bin",
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + c.pod + ";K8S_POD_INFRA_CONTAINER_ID=" + c.pod,
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin",
	}
	cmd.Stdin = bytes.NewReader(c.conf)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	began := time.Now()
	err = cmd.Run()
	wall = time.Since(began)
	if err != nil {
		return 0, 0, fmt.Errorf("%s %s: %w", c.plugin, verb, errors.Join(err, errors.New(message(append(out.Bytes(), log.Bytes()...)))))
	}
	return wall, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// callTable returns the table of the rows.
func callTable(sc scene, rows []*callRow) table {
	t := table{title: "the CNI calls of one pod alone, " + sc.plugin, head: []string{"medians in milliseconds", "ADD", "p90", "CPU", "DEL", "p90", "CPU"}}
	for _, r := range rows {
		row := []string{r.Title}
		for _, verb := range [][2][]float64{{r.Add, r.AddCPU}, {r.Del, r.DelCPU}} {
			row = append(row, fmt.Sprintf("%.0f", median(verb[0])), fmt.Sprintf("%.0f", quantile(verb[0], 0.9)), fmt.Sprintf("%.0f", median(verb[1])))
		}
		t.rows = append(t.rows, row)
	}
	return t
}
