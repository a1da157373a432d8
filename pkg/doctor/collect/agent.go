package collect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/agent/local"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/objects"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
)

// kubeletDir is a directory that exists only on a node of Kubernetes.
const kubeletDir = "var/lib/kubelet"

// isNode reports whether the machine is a node of Kubernetes. If this is not known, isNode returns
// true.
func (c *collector) isNode() bool { return c.node.Value || !c.node.OK() }

// ofKubelet reads the facts about device plugins.
func (c *collector) ofKubelet(ctx context.Context, to *fact.Kubelet) {
	take(ctx, c, &to.Foreign, c.procs.HostPath(kubeletDir), localTime, func(context.Context) ([]string, error) {
		if !c.root && c.isNode() {
			return nil, files.ErrRoot // only root can read the kubelet's directory, which has a directory for each pod
		}
		found, err := inventory.SharedDevicePlugin(c.Root)
		return append([]string{}, found...), err
	})
}

// agentFacts are the facts from one answer of rail-agent.
type agentFacts struct {
	running     bool
	version     string
	nri         bool
	notReturned int
	kubeconfig  fact.Kubeconfig
	unasked     string // the reason why it is not known whether the server accepts the kubeconfig
}

// errNoAgent is the error for facts that only a running agent knows.
var errNoAgent = errors.New("rail-agent does not run")

// ofAgent reads the facts about rail-agent.
func (c *collector) ofAgent(ctx context.Context, to *fact.Agent) {
	source := c.Socket
	if c.Status != nil {
		source = "this process"
	}
	ask := sync.OnceValues(func() (agentFacts, error) {
		ctx, cancel := objects.Answered(ctx)
		defer cancel()
		return c.askAgent(ctx)
	})
	running := func() (agentFacts, error) {
		found, err := ask()
		if err == nil && !found.running {
			err = errNoAgent
		}
		return found, err
	}
	take(ctx, c, &to.Running, source, objects.AnswerTime, func(context.Context) (bool, error) {
		found, err := ask()
		return found.running, err
	})
	take(ctx, c, &to.Version, source, objects.AnswerTime, func(context.Context) (string, error) {
		found, err := running()
		return found.version, err
	})
	take(ctx, c, &to.NRI, source, objects.AnswerTime, func(context.Context) (bool, error) {
		found, err := running()
		return found.nri, err
	})
	take(ctx, c, &to.NotReturned, source, objects.AnswerTime, func(context.Context) (int, error) {
		found, err := running()
		return found.notReturned, err
	})
	take(ctx, c, &to.Kubeconfig, source, objects.AnswerTime, func(context.Context) (fact.Kubeconfig, error) {
		found, err := running()
		if err == nil && found.unasked != "" {
			err = errors.New(found.unasked)
		}
		return found.kubeconfig, err
	})
	take(ctx, c, &to.Memlock, source+" and "+nodefile.Path(), objects.AnswerTime, func(context.Context) (bool, error) {
		found, err := running()
		if err != nil || !found.nri {
			return false, err
		}
		file, err := nodefile.Read(nodefile.Path())
		return err == nil && railinfo.SettingsOf(file).Memlock, err
	})
}

// maxAnswer is the maximum size of an answer of the agent, in bytes.
const maxAnswer = 16 << 20

// askAgent asks the agent at its socket, which only root can use. If there is no socket, or nobody
// listens on it, no agent runs.
func (c *collector) askAgent(ctx context.Context) (agentFacts, error) {
	get := func() ([]byte, error) { return c.get(ctx, "/status") }
	if c.Status != nil {
		get = c.Status
	}
	text, err := get()
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		return agentFacts{}, nil
	case err != nil:
		return agentFacts{}, err
	}
	var status struct {
		Version    string `json:"version"`
		NRI        bool   `json:"nri"`
		Kubeconfig struct {
			fact.Kubeconfig
			Unasked string `json:"unasked"`
		} `json:"kubeconfig"`
		StateDirs []struct {
			Ending []struct {
				Error string `json:"error"`
			} `json:"ending"`
		} `json:"stateDirs"`
	}
	if err := json.Unmarshal(text, &status); err != nil {
		return agentFacts{}, fmt.Errorf("the agent's answer is not a status: %w", err)
	}
	found := agentFacts{running: true, version: status.Version, nri: status.NRI, kubeconfig: status.Kubeconfig.Kubeconfig, unasked: status.Kubeconfig.Unasked}
	for _, dir := range status.StateDirs {
		for _, e := range dir.Ending {
			if e.Error != "" {
				found.notReturned++
			}
		}
	}
	return found, nil
}

// get returns the agent's answer to a request for path.
func (c *collector) get(ctx context.Context, path string) ([]byte, error) {
	answer, err := local.Get(ctx, c.Socket, path)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, answer.Status)
	}
	return text, err
}
