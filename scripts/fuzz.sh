#!/usr/bin/env bash
# Runs every fuzz target of the tree for FUZZTIME each, one after another, and
# prints the failed ones at the end. go test writes the input of a failure to its
# package's testdata/fuzz: commit it with the fix.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/scratch.sh
FUZZTIME=${FUZZTIME:-60s}

mapfile -t targets < <(
	grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*\(' . |
		sed -E 's#^(\./)?(.*)/[^/]+_test\.go:func (Fuzz[A-Za-z0-9_]*)\(#\2 \3#' | sort -u
)
if ((${#targets[@]} == 0)); then
	echo "fuzz: there is no fuzz target in this tree" >&2
	exit 1
fi
echo "fuzz: ${#targets[@]} targets, $FUZZTIME each"

held=0
broken=()
for target in "${targets[@]}"; do
	read -r dir name <<<"$target"
	echo "== ./$dir $name"
	if (cd "$dir" && go test -run '^$' -fuzz "^$name\$" -fuzztime "$FUZZTIME" .); then
		held=$((held + 1))
	else
		broken+=("./$dir $name")
	fi
done

for target in "${broken[@]}"; do
	echo "FAILED $target"
done
echo "fuzz: $held passed, ${#broken[@]} failed"
((${#broken[@]} == 0))
