#!/usr/bin/env bash
# Builds programs of other projects, and says how far "make test" is: a first
# build takes minutes. Prints nothing if the programs exist: Go's build cache
# then makes the build quick.
#
#   scripts/progress.sh PROGRAM COMMAND…
#
# PROGRAM is one that the command makes, below bin/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# All builds, in the order of "make test".
programs=(peers/host-device peers/rdma peers/kubernetes/whereabouts tools/controlplane/etcd tools/controlplane/kube-apiserver
	peers/kubernetes/multus tools/controlplane/kubelet tools/runtime2/containerd tools/golangci-lint tools/helm)
names=("the plugins of containernetworking" rdma-cni whereabouts etcd kube-apiserver
	Multus "kubelet and the other programs of Kubernetes" "containerd 2" "the linter" helm)

program=$1
shift
[[ -x bin/$program ]] && exec "$@"

for ((i = 0; i < ${#programs[@]}; i++)); do
	[[ ${programs[i]} == "$program" ]] && break
done
((i < ${#programs[@]})) || { echo "progress.sh: $program is not in its list of programs: add it" >&2 && exit 1; }
echo "building ${names[i]} ($((i + 1)) of ${#names[@]}, only the first time) …"
began=$SECONDS
"$@"
after=
for ((next = i + 1; next < ${#programs[@]}; next++)); do
	[[ -x bin/${programs[next]} ]] || { after="; next: ${names[next]}" && break; }
done
echo "built ${names[i]}, $((SECONDS - began)) s$after"
