#!/usr/bin/env bash
# Prints the tests of scripts/long.txt as a pattern for go test's -skip. "long.sh TARGET"
# prints only those that this make target runs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Each element of a name is a pattern of its own, as go test splits them at slashes.
awk -v target="${1:-}" '!/^#/ && NF && (target == "" || $2 == target) { gsub("/", "$/^", $1); print "^" $1 "$" }' scripts/long.txt | paste -sd '|'
