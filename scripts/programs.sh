#!/usr/bin/env bash
# Builds programs of other projects into bin/, as the modules of this tree pin them:
#
#   scripts/programs.sh GROUP…
#
# GROUP is peers, multus, controlplane, nodes, tools or helm. KUBERNETES=1.37 builds controlplane and
# nodes of another release, into bin/tools/controlplane-1.37. A first build takes minutes, and
# says how far it is. The programs are kept for all checkouts of the user, in
# ~/.cache/rail-cni/programs, by all that goes into them: even linking them anew takes most of a
# minute.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

kubernetes=integration/controlplane/binaries/kubernetes
release=$kubernetes${KUBERNETES:+-$KUBERNETES} plane=tools/controlplane${KUBERNETES:+-$KUBERNETES}
[[ -d $release ]] || { echo "programs.sh: there is no release $KUBERNETES of Kubernetes: see docs/reference/kubernetes.md" >&2 && exit 2; }
containerd=integration/controlplane/binaries/containerd
containernetworking=github.com/containernetworking/plugins/plugins
multus=gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd

# version MODULE DIR prints the version of a module that the one in DIR requires. Programs of
# Kubernetes and containerd 2 report it.
version() { (cd "$2" && go list -m -f '{{.Version}}' "$1"); }

# rows prints a row for each build, in the order of "make test": the group, a name for a
# person, the module, the directory below bin/, the packages (PACKAGE=NAME, where the
# program's name is not the package's), more flags for the linker, and build tags.
rows() {
	local of_kubernetes of_containerd of_helm='' package
	of_kubernetes=$(version k8s.io/kubernetes "$release")
	of_kubernetes="-X k8s.io/component-base/version.gitVersion=$of_kubernetes -X k8s.io/client-go/pkg/version.gitVersion=$of_kubernetes"
	of_containerd="-X github.com/containerd/containerd/v2/version.Version=$(version github.com/containerd/containerd/v2 $containerd)"
	for package in lint/rules chartutil; do # the version that charts are checked for
		of_helm+=" -X helm.sh/helm/v3/pkg/$package.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/$package.k8sVersionMinor=36"
	done
	cat <<-END
		peers|the plugins of containernetworking|integration/peers/plugins|peers|$(printf "$containernetworking/%s " ipam/dhcp ipam/host-local ipam/static main/bridge main/host-device main/loopback main/macvlan meta/sbr meta/tuning)
		peers|rdma-cni|integration/peers/rdma-cni|peers|github.com/k8snetworkplumbingwg/rdma-cni/cmd/rdma
		peers|k8s-rdma-shared-dev-plugin|integration/peers/shared-device-plugin|peers/devices|github.com/Mellanox/k8s-rdma-shared-dev-plugin/cmd/k8s-rdma-shared-dp
		peers|whereabouts|integration/peers/whereabouts-cni|peers/kubernetes|github.com/k8snetworkplumbingwg/whereabouts/cmd=whereabouts
		controlplane|etcd|$release|$plane|go.etcd.io/etcd/server/v3=etcd
		controlplane|kube-apiserver|$release|$plane|k8s.io/kubernetes/cmd/kube-apiserver|$of_kubernetes
		multus|Multus|$kubernetes|peers/kubernetes|$multus/multus $multus/multus-daemon $multus/multus-shim
		nodes|kubelet and the other programs of Kubernetes|$release|$plane|$(printf 'k8s.io/kubernetes/cmd/%s ' kube-controller-manager kube-scheduler kubectl kubelet)|$of_kubernetes
		nodes|containerd 2|$containerd|tools/runtime2|github.com/containerd/containerd/v2/cmd/containerd github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2|$of_containerd|urfave_cli_no_docs,no_btrfs,no_devmapper,no_zfs
		tools|the linter|scripts/tools|tools|github.com/golangci/golangci-lint/v2/cmd/golangci-lint
		helm|helm|$kubernetes|tools|helm.sh/helm/v3/cmd/helm|$of_helm
	END
}

bin=$PWD/bin kept=${XDG_CACHE_HOME:-$HOME/.cache}/rail-cni/programs
machine=$(go env GOVERSION GOFLAGS CGO_ENABLED GOOS GOARCH GOFIPS140)

# key ROW prints a name for the programs of a build.
key() {
	local module
	IFS='|' read -r _ _ module _ <<<"$1"
	{ printf '%s\n' "$1" "$machine" && cat "$module/go.mod" "$module/go.sum"; } | sha256sum | cut -c 1-24
}

# build ROW DIR builds the programs into a new directory.
build() {
	local module packages ldflags tags package made
	IFS='|' read -r _ _ module _ packages ldflags tags <<<"$1"
	made=$(mktemp -d "$kept/new-XXXXXX")
	for package in $packages; do
		[[ $package != *=* ]] || made+=/${package#*=} # the name of the only program
	done
	# shellcheck disable=SC2086 # words
	go build -C "$module" ${tags:+-tags "$tags"} -ldflags "-s -w $ldflags" -o "$made" ${packages//=[a-z]*/}
	[[ -d $made ]] || made=${made%/*}
	mv -T "$made" "$2" 2>/dev/null || rm -rf "$made" # somebody else was faster
	[[ -d $2 ]] || { echo "programs.sh: $2 cannot be made: remove what is there" >&2 && exit 1; }
}

all=$(rows) # for its exit code
mapfile -t all <<<"$all"
for group; do
	printf '%s\n' "${all[@]}" | grep "^$group|" >/dev/null || { echo "programs.sh: $group is no group of programs: see its head" >&2 && exit 2; }
done
mkdir -p "$kept"
find "$kept" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf '{}' + # used last a month ago

for ((i = 0; i < ${#all[@]}; i++)); do
	IFS='|' read -r group name _ to _ <<<"${all[i]}"
	[[ " $* " == *" $group "* ]] || continue
	from=$kept/$(key "${all[i]}")
	if [[ ! -d $from ]]; then
		[[ -n ${scratch:-} ]] || . scripts/scratch.sh # go build leaves gigabytes when it is killed
		echo "building $name ($((i + 1)) of ${#all[@]}, only the first time) …"
		began=$SECONDS
		build "${all[i]}" "$from"
		after=
		for ((next = i + 1; next < ${#all[@]}; next++)); do
			[[ -d $kept/$(key "${all[next]}") ]] && continue
			after="; next: $(cut -d '|' -f 2 <<<"${all[next]}")" && break
		done
		echo "built $name, $((SECONDS - began)) s$after"
	fi
	touch "$from"
	mkdir -p "$bin/$to"
	for program in "$from"/*; do
		cmp -s "$program" "$bin/$to/${program##*/}" || install -m 755 "$program" "$bin/$to/"
	done
done
