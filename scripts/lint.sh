#!/usr/bin/env bash
# golangci-lint over every module of the tree, with the one configuration, and checks
# that it does not have.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD

failed=0
scripts/prose.sh || failed=1

for module in $(scripts/modules.sh); do
	echo "lint: $module"
	# --allow-parallel-runners: do not wait for a linter of another tree.
	(cd "$module" && "$root/bin/tools/golangci-lint" run --config "$root/.golangci.yml" --allow-parallel-runners ./...) || failed=1
done

# Finds requirements that are unused, or wrongly marked indirect. The first run
# downloads the imports of other modules' tests.
for module in $(scripts/modules.sh all); do
	if ! untidy=$(cd "$module" && go mod tidy -diff 2>&1); then
		echo "lint: go.mod or go.sum is not tidy, run \"go mod tidy\" in $module:"
		echo "$untidy"
		failed=1
	fi
done

# depguard checks the imports of a file; this checks those of a whole binary.
for plugin in plugins/host-device plugins/macvlan plugins/rdma plugins/ipoib plugins/sriov plugins/ib-sriov; do
	[[ -d $plugin ]] || continue
	if heavy=$(go list -deps "./$plugin" | grep -E '^(sigs\.)?k8s\.io/'); then
		echo "lint: ./$plugin must not hold a Kubernetes client, but is built with:"
		head -n 5 <<<"$heavy"
		failed=1
	fi
done
exit "$failed"
