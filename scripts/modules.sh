#!/usr/bin/env bash
# Prints the directory of each Go module of the tree that holds packages of
# ours, the main one first. scripts/tools has none: it only pins tools.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
echo .
find integration -name go.mod -printf '%h\n' | sort
