#!/usr/bin/env bash
# Lint and the tests of all modules, with one summary at the end. Called by "make test",
# which builds the binaries that the tests run, and sets RAIL_CNI_TESTS=all: no test may be
# skipped because one is missing. Continues after a failed step, so that one run shows all
# failures.
#
# Leaves out the tests of scripts/long.txt, and runs samples of long tables, unless
#
#   RAIL_CNI_FULL=yes  all tests, without samples
#   BASE=REV           also those of scripts/long.txt that watch a path changed since REV
#
#   NO_RACE    packages whose tests run without the race detector
#   LEAVE_OUT  packages whose tests do not run
#   ALONE      packages without the race detector, each with no other tests beside it
#   RIG=no     without the tests in virtual machines
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

leave=()
if [[ ${RAIL_CNI_FULL:-} != yes ]]; then
	long=$(scripts/long.sh)
	leave=(-skip "$long")
	packages=$(scripts/long.sh packages)
	LEAVE_OUT="${LEAVE_OUT:-} $packages"
fi

. scripts/scratch.sh
. scripts/steps.sh

# One seed for all packages, and for those who repeat this run (integration/need).
RAIL_CNI_SEED=$("$report" -seed)
export RAIL_CNI_SEED

# every NAME FLAGS… PACKAGES… runs tests. -count=1: go would use a cached success although a
# binary that the test runs, or the machine's kernel, has changed. -vet=off: lint has vetted.
# -ldflags: a quarter less work of the linker, and no test reads what is left out.
# GOGC: a tenth less CPU time of the tests and their programs, for memory.
every() {
	local name=$1
	shift
	gotest "$name" -count=1 -vet=off -ldflags='-s -w' -exec "env GOGC=400 '$report' -cost-into '$run'" "${leave[@]}" "$@"
}

# has LIST ITEM: is the item in the list of words?
has() { [[ " $1 " == *" $2 "* ]]; }

nested() { (cd "$1" && every "${1//\//-}" ./...); }

# concurrent DIR: does a goroutine of the package or of its tests share anything with another?
# Without one the race detector has nothing to find; FULL=yes runs it all the same.
concurrent() {
	[[ ${RAIL_CNI_FULL:-} == yes ]] || grep -qE '(^[[:space:]]*|[{;] )go |\.Go\(|errgroup|sync\.|atomic\.|\.Parallel\(\)|httptest|AfterFunc|http\.Serve' "$1"/*.go
}

module=$(go list -m)
race=() plain=() alone=()
for package in $(go list ./... | "$report" -longest-first scripts/durations.txt "$run.before/durations.txt"); do
	short=${package#"$module/"}
	if has "${LEAVE_OUT:-}" "$short"; then
		continue
	elif has "${ALONE:-}" "$short"; then
		alone+=("$package")
	elif has "${NO_RACE:-}" "$short" || ! concurrent "$short"; then
		plain+=("$package")
	else
		race+=("$package")
	fi
done

step lint scripts/lint.sh
# More packages at a time than there are CPUs: most tests wait for the kernel (RCU), for
# kubelets and for servers half of the time. The longest first, or the last one runs alone.
# The race detector is a C library: only it needs cgo.
CGO_ENABLED=1 step "tests, race detector on" every race -race -p 6 -parallel 8 "${race[@]}"
# A kubelet or an agent misses its time limits if four clusters run side by side. Without the
# packages of scripts/long.txt one package starts a cluster, so three packages may run.
[[ -z ${BASE:-} && ${RAIL_CNI_FULL:-} != yes ]] && beside=4 || beside=2
step "tests, race detector off" every plain -p "$beside" "${plain[@]}"
((${#alone[@]} == 0)) || step "tests, one package at a time" every alone -p 1 "${alone[@]}"
for dir in $(scripts/modules.sh); do
	[[ $dir == . ]] || step "tests, $dir" nested "$dir"
done
if [[ ${RIG:-} != no ]]; then
	RIG='' KEEP=$run step "tests, in the rig" scripts/test-rig.sh
fi
summary -no-skips # not only the skips of integration/need
