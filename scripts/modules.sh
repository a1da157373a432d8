#!/usr/bin/env bash
# Prints the directory of each Go module of the tree with packages of ours, the
# main one first. "modules.sh all" also prints those below scripts/tools,
# which only pin tools.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
echo .
find integration -name go.mod -printf '%h\n' | sort
if [[ ${1:-} == all ]]; then
	find scripts -name go.mod -printf '%h\n' | sort
fi
