#!/usr/bin/env bash
# golangci-lint over every module of the tree, with the one configuration.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD

failed=0
for module in $(scripts/modules.sh); do
	echo "lint: $module"
	# --allow-parallel-runners: wait for nobody who lints another tree.
	(cd "$module" && "$root/bin/tools/golangci-lint" run --config "$root/.golangci.yml" --allow-parallel-runners ./...) || failed=1
done
exit "$failed"
