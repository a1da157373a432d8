#!/usr/bin/env bash
# Lint, vet and the tests of all modules, with one summary at the end. Called by
# "make test", which builds the binaries that the tests run, and sets
# RAIL_CNI_TESTS=all: no test may be skipped because one is missing. Continues
# after a failed step, so that one run shows all failures.
#
# Leaves out the tests of scripts/long.txt, and runs samples of long tables, unless
#
#   RAIL_CNI_FULL=yes  all tests, without samples
#
#   NO_RACE   packages whose tests run without the race detector
#   SERIAL    packages whose tests need the machine to themselves
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ $EUID -ne 0 ]]; then
	echo "test.sh: the tests make network namespaces and move links between them: run 'make test' as root" >&2
	exit 1
fi
if ! unshare --net true 2>/dev/null; then
	echo "test.sh: this root may not make network namespaces (a container without CAP_SYS_ADMIN?): run the tests where 'unshare --net true' works" >&2
	exit 1
fi

. scripts/steps.sh

# -count=1: go would use a cached success although a binary that the test runs, or
# the machine's kernel, has changed.
every() { gotest -count=1 "${leave[@]}" "$@"; }
leave=()
[[ ${RAIL_CNI_FULL:-} == yes ]] || leave=(-skip "$(scripts/long.sh)")

# has LIST ITEM: is the item in the list of words?
has() { [[ " $1 " == *" $2 "* ]]; }

nested() { (cd "$1" && every ./...); }

module=$(go list -m)
race=() plain=() serial=()
for package in $(go list ./...); do
	short=${package#"$module/"}
	if has "${SERIAL:-}" "$short"; then
		serial+=("$package")
	elif has "${NO_RACE:-}" "$short"; then
		plain+=("$package")
	else
		race+=("$package")
	fi
done

step lint scripts/lint.sh
step vet vet
# The race detector is a C library: only it needs cgo. Tests that run
# concurrently wait for the kernel (RCU), not for a CPU.
((${#race[@]})) && CGO_ENABLED=1 step "tests, race detector on" every -race -parallel 8 "${race[@]}"
# Three packages at a time: clusters wait for their kubelets half of the time.
((${#plain[@]})) && step "tests, race detector off" every -p 3 "${plain[@]}"
((${#serial[@]})) && step "tests, one after another" every -p 1 -parallel 1 "${serial[@]}"
for dir in $(scripts/modules.sh); do
	[[ $dir == . ]] || step "tests, $dir" nested "$dir"
done
# Last, because it takes longest.
COUNTS=$work/counts step "tests, in the rig" scripts/test-rig.sh
summary -no-skips # not only the skips of integration/need
