#!/usr/bin/env bash
# Runs the tests with the build tag "kernels" on every kernel of the rig, and writes
# what they found out: a file for each in integration/rig/kernels/facts, and the table in
# docs/reference/kernels.md. Called by "make kernels-table", which builds the binaries
# that the tests run.
#
#   KERNELS   only these, e.g. "6.1 6.12"
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

package=integration/rig/kernels
. scripts/scratch.sh
go build -o bin/tools/rig ./integration/rig/exec
work=$(mktemp -d)
CGO_ENABLED=0 go test -c -tags kernels -o "$work/kernels.test" "./$package"
for linux in ${KERNELS:-$(cd "$package/facts" && printf '%s\n' *.txt | sed 's/\.txt$//' | sort -V)}; do
	echo "kernels-table.sh: Linux $linux"
	(cd "$package" && RIG=$linux RIG_FACTS=new ../../../bin/tools/rig "$work/kernels.test" -test.v -test.timeout=15m) |
		tee "$work/$linux.log"
	sed -nE 's/^ *[a-z_]+\.go:[0-9]+: fact ([a-z]+: .*)$/\1/p' "$work/$linux.log" | LC_ALL=C sort -u >"$package/facts/$linux.txt"
done
go test -count=1 "./$package/facts" -update-docs
