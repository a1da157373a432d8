#!/usr/bin/env bash
# Runs the tests of one package in the rig (integration/rig), or, of its files with the build
# tag "machines", here: these start machines themselves. Called by "make rig", which builds
# our binaries. What a test needs beside them, such as other projects' plugins, it uses if it
# is built; otherwise it is skipped, and says which target builds it.
#
#   PKG            directory of the package, e.g. ./integration/rig/tests
#   RUN            only these tests, as go test -run has them; default all of the package
#   RAIL_CNI_FULL  yes: without samples of long tables
#   RIG_ACCEL, RIG_MODULE, …  see integration/rig/exec
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

dir=${PKG:-}
dir=./${dir#./}
dir=${dir%/}
if [[ -z ${PKG:-} || ! -d $dir ]]; then
	echo "rig.sh: PKG=${PKG:-} is no directory of the checkout: name a package, e.g. make rig PKG=./integration/rig/tests RUN=TestNICsOfDead" >&2
	exit 2
fi
. scripts/scratch.sh
go build -o bin/tools/rig ./integration/rig/exec
mkdir -p bin/peers # empty, if they are not built

# names FILE… prints the tests in these files.
names() { (($# == 0)) || sed -nE 's/^func (Test[A-Za-z0-9_]*)\(t .*/\1/p' "$@"; }
# pattern prints the names that it reads as a pattern for -run, of which there may be none.
pattern() { echo "^($(paste -sd '|'))\$"; }

mapfile -t here < <(grep -lE '^//go:build machines$' "$dir"/*_test.go || true)
mapfile -t there < <(grep -LE '^//go:build machines$' "$dir"/*_test.go || true)
test=(go test -tags 'rig,machines,kernels' -count=1 -timeout 1h -v) # loans by the dozen take that with FULL=yes
ended=0 run=0
first=${RUN:-.}
if names "${there[@]}" | grep -E "${first%%/*}" >/dev/null; then # not -q, which ends its input early
	run=1
	# Static, which excludes the race detector.
	CGO_ENABLED=0 "${test[@]}" -exec "$PWD/bin/tools/rig" -run "${RUN:-.}" -skip "$(names "${here[@]}" | pattern)" "$dir" || ended=1
fi
if names "${here[@]}" | grep -E "${first%%/*}" >/dev/null; then # not -q, which ends its input early
	run=1
	CGO_ENABLED=0 "${test[@]}" -run "${RUN:-.}" -skip "$(names "${there[@]}" | pattern)" "$dir" || ended=1
fi
if ((!run)); then
	echo "rig.sh: $dir has no test that matches RUN=${RUN:-}" >&2
	exit 1
fi
exit "$ended"
