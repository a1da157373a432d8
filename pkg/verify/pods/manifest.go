package pods

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// These are the labels of Jobs and pods.
const (
	runLabel  = "rail-cni.io/verify"      // the ID of the run
	nodeLabel = "rail-cni.io/verify-node" // the number of the node in the run and the number of the try: "3-1"
)

const (
	container = "verify"
	// Idle is how long a prober waits for a request, in addition to Options.Within. Options.Within
	// is added because no request comes before the kubelet has reported that the pod runs, and the
	// kubelet may be slow.
	Idle = 30 * time.Second
	// kept is how long Kubernetes keeps a Job that has ended.
	kept = 15 * time.Second
	// grace is the time that a prober has to end after SIGTERM.
	grace = 2 * time.Second
)

// proberPath is the path of railctl in rail-agent's image. sharedDir is the directory to which
// railctl is copied for a container with another image.
const (
	proberPath = "/railctl"
	sharedDir  = "/rail-cni-verify"
)

// program returns the command of the prober in the pods of a run.
func (o *Options) program(path string) []string {
	return []string{path, "verify", "probe", "--idle", (o.Within + Idle).String()}
}

type (
	object = map[string]any
	list   = []any
)

// member is a node of a run.
type member struct {
	node  string
	index int
	try   int
	nonce [4]byte // a random part of the Job's name, new for each try
	image string
	// missing and broken have the reasons why rails are left out, by the numbers of the rails. A
	// rail is missing if another pod has it. It is broken if its network cannot be attached.
	missing, broken map[int]string
}

// interfaceOf returns the name of a rail's interface in the pods.
func interfaceOf(rail int) string { return "net" + strconv.Itoa(rail+1) }

// label returns the value of the label nodeLabel.
func (m *member) label() string { return fmt.Sprintf("%d-%d", m.index, m.try) }

// name returns the name of the Job. The name has a random part, which is new for each try, so
// nobody can make an object with this name in advance.
func (m *member) name(run string) string {
	return fmt.Sprintf("%s-%x", jobName(run, m.label()), m.nonce)
}

// jobName returns the beginning of the name of a Job with these labels.
func jobName(run, label string) string { return "rail-verify-" + run + "-" + label }

// job returns the manifest of the node's Job. Its pod gets the rails that are not left out.
func (m *member) job(o *Options, run string) (object, error) {
	networks, devices := list{}, map[string]int{}
	for k := range o.Networks {
		n := &o.Networks[k]
		if m.missing[k]+m.broken[k] != "" {
			continue
		}
		networks = append(networks, object{"namespace": n.Namespace, "name": n.Name, "interface": interfaceOf(k)})
		if strings.Contains(n.Resource, "/") { // a resource without "/" would be cpu or memory
			devices[n.Resource]++
		}
	}
	annotation, err := json.Marshal(networks)
	if err != nil {
		return nil, err
	}
	requests, limits := object{"cpu": "10m", "memory": "32Mi"}, object{"memory": "256Mi"}
	for name, count := range devices {
		requests[name], limits[name] = strconv.Itoa(count), strconv.Itoa(count)
	}
	labels := object{"app.kubernetes.io/name": "rail-cni", "app.kubernetes.io/component": "verify", runLabel: run, nodeLabel: m.label()}
	main := object{
		"name": container, "image": cmp.Or(o.Image, m.image), "imagePullPolicy": "IfNotPresent", "command": o.program(proberPath),
		"stdin": true, "stdinOnce": true,
		"resources": object{"requests": requests, "limits": limits},
		// NET_RAW is needed for broadcasts. Added capabilities are effective only for root.
		"securityContext": security("NET_RAW"),
	}
	pod := object{
		"restartPolicy": "Never", "terminationGracePeriodSeconds": seconds(grace), "automountServiceAccountToken": false, "enableServiceLinks": false,
		// The pod is placed like the pods of a DaemonSet: the scheduler places it on this node, and
		// the node's taints do not matter.
		"affinity": object{"nodeAffinity": object{"requiredDuringSchedulingIgnoredDuringExecution": object{"nodeSelectorTerms": list{
			object{"matchFields": list{object{"key": "metadata.name", "operator": "In", "values": list{m.node}}}},
		}}}},
		"tolerations":     list{object{"operator": "Exists"}},
		"securityContext": object{"seccompProfile": object{"type": "RuntimeDefault"}},
		"containers":      list{main},
	}
	if o.RDMAImage != "" {
		o.withRDMAImage(pod, main)
		limits["memory"] = "2Gi"
	}
	return object{
		"apiVersion": "batch/v1", "kind": "Job",
		"metadata": object{"name": m.name(run), "labels": labels},
		"spec": object{
			"backoffLimit": 0, "activeDeadlineSeconds": seconds(o.Deadline), "ttlSecondsAfterFinished": seconds(kept),
			"template": object{"metadata": object{"labels": labels, "annotations": object{networksKey: string(annotation)}}, "spec": pod},
		},
	}, nil
}

func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// withRDMAImage changes the pod so that the prober runs in the image for RDMA. A container with the
// first image copies the prober into it. The main container also gets IPC_LOCK, because verbs need
// locked memory.
func (o *Options) withRDMAImage(pod, main object) {
	volume := list{object{"name": "prober", "mountPath": sharedDir}}
	pod["volumes"] = list{object{"name": "prober", "emptyDir": object{}}}
	pod["initContainers"] = list{object{
		"name": "prober", "image": main["image"], "imagePullPolicy": "IfNotPresent", "command": []string{proberPath, "verify", "copy", sharedDir + proberPath},
		"resources": object{"requests": object{"cpu": "10m", "memory": "32Mi"}, "limits": object{"memory": "256Mi"}}, "volumeMounts": volume,
		"securityContext": security(),
	}}
	main["image"], main["command"], main["volumeMounts"] = o.RDMAImage, o.program(sharedDir+proberPath), volume
	main["securityContext"] = security("NET_RAW", "IPC_LOCK")
}

// security returns the security context of a container that runs as root with only these
// capabilities.
func security(capabilities ...string) object {
	return object{
		"runAsUser": 0, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
		"capabilities": object{"drop": list{"ALL"}, "add": capabilities},
	}
}
