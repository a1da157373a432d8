package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// readOnlyNode is a script that makes a node like Talos in namespaces of its own:
// /etc and /usr are read-only; /etc/cni, /opt, /run and /var/lib are not. It
// prints a line for each step that the test checks.
const readOnlyNode = `
mount -t tmpfs tmpfs /run
mkdir -p /run/netns /run/etc /run/work
mount -t overlay -o lowerdir=/etc,upperdir=/run/etc,workdir=/run/work overlay /etc
mkdir -p /etc/cni
mount -t tmpfs tmpfs /etc/cni
for dir in /opt /var/lib; do mount -t tmpfs tmpfs $dir; done
mkdir -p /opt/cni/bin
mount --bind /usr /usr
for dir in /etc /usr; do
	mount -o remount,bind,ro $dir
	! touch $dir/x 2>/run/said || { echo "$dir is not read-only"; exit 1; }
done
ip link set lo up
for n in 1 2; do ip link add ens${n}np0 type veth peer name wire$n; done
ip netns add pod

try() { # VERB NIC
	printf '{"cniVersion":"1.0.0","name":"n","type":"host-device","device":"%s","rdma":"off"}' $2 |
	CNI_COMMAND=$1 CNI_CONTAINERID=c$2 CNI_IFNAME=net1 CNI_NETNS=/run/netns/pod CNI_PATH=/opt/cni/bin /opt/cni/bin/host-device >/run/said 2>&1 &&
	echo "$1 $2: done" || echo "$1 $2: $(tr -d '\n' </run/said)"
}
there() { for i in $(seq 600); do [ -e $1 ] && return; sleep 0.1; done; echo "there is no $1"; cat /run/log; exit 1; }

$BIN/rail-agent run --install --own $BIN --cni-bin /opt/cni/bin --metrics 127.0.0.1:0 --node-file '{"nics":[{"name":"ens1np0"}],"allow":[]}' 2>/run/log &
agent=$!
there /opt/cni/bin/whereabouts
try ADD ens1np0
try DEL ens1np0
try ADD ens2np0
$BIN/railctl rdma mode exclusive --persist-only 2>&1 && echo "the mode is set" || :

# The administrator can write to /etc after all: that file counts, whatever it has.
mount -o remount,bind,rw /etc
mkdir /etc/rail-cni
echo 'nics: [{name: ens2np0}]' >/etc/rail-cni/node.yaml
try ADD ens1np0
try ADD ens2np0
try DEL ens2np0
echo 'nics: [' >/etc/rail-cni/node.yaml
try ADD ens1np0

kill $agent
wait $agent || :
# An agent whose pod lacks the volume does not see it.
unshare --mount sh -ec 'mount -t tmpfs tmpfs /etc/rail-cni; exec $BIN/rail-agent run --install --own $BIN --cni-bin /opt/cni/bin --metrics 127.0.0.1:0 2>/run/log' &
agent=$!
for i in $(seq 600); do grep -q 'level=WARN.*not mounted into the agent' /run/log && break; sleep 0.1; done
grep -o 'path=/etc/rail-cni/node.yaml' /run/log || cat /run/log
kill $agent
wait $agent || :
rm -r /etc/rail-cni
mount -o remount,bind,ro /etc
$BIN/rail-agent uninstall >/run/said 2>&1 || { cat /run/said; exit 1; }
echo "left: [$(ls /opt/cni/bin /etc/cni /var/lib/rail-cni/node.yaml 2>/dev/null | grep -v :$ | xargs)]"
`

func TestANodeWhoseEtcAndUsrAreReadOnly(t *testing.T) {
	need.Root(t)
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private", "sh", "-ec", readOnlyNode)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, nodefile.PathEnv+"=") { // the defaults are tested
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "BIN="+testnet.Bin(t))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	for i, want := range []string{
		"ADD ens1np0: done",
		"DEL ens1np0: done",
		"ADD ens2np0: *not open to networks on this node*" + nodefile.InstalledPath,
		"*cannot be written: the file system is read-only on this node; give the kernel the argument ib_core.netns_mode=0",
		"ADD ens1np0: *not open to networks on this node*" + nodefile.DefaultPath,
		"ADD ens2np0: done",
		"DEL ens2np0: done",
		"ADD ens1np0: *node file " + nodefile.DefaultPath,
		"path=/etc/rail-cni/node.yaml",
		"left: []",
	} {
		if i >= len(lines) || !inOrder(lines[i], strings.Split(want, "*")) {
			t.Errorf("line %d should be %q:\n%s", i+1, want, out)
		}
	}
}

// inOrder reports whether the line begins with the first part, and has the
// others behind it.
func inOrder(line string, parts []string) bool {
	if !strings.HasPrefix(line, parts[0]) {
		return false
	}
	for _, part := range parts {
		_, after, ok := strings.Cut(line, part)
		if !ok {
			return false
		}
		line = after
	}
	return true
}
