#!/usr/bin/env bash
# Lint, vet and all tests of all modules, with one summary at the end. Called by
# "make test", which builds the binaries that the tests run. Goes on after a
# failed step, so that one run shows everything that is wrong.
#
#   NO_RACE   packages whose tests run without the race detector
#   SERIAL    packages whose tests have the machine for themselves
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD

if [[ $EUID -ne 0 ]]; then
	echo "test.sh: the tests make network namespaces and move links between them: run 'make test' as root" >&2
	exit 1
fi
if ! unshare --net true 2>/dev/null; then
	echo "test.sh: this root may not make network namespaces (a container without CAP_SYS_ADMIN?): run the tests where 'unshare --net true' works" >&2
	exit 1
fi

report=$root/bin/tools/testreport
go build -o "$report" ./scripts/testreport

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
summary=()
failed=0

# step NAME COMMAND… runs the command and remembers how it ended.
step() {
	local name=$1 began=$SECONDS ended=ok
	shift
	echo
	echo "== $name"
	"$@" || { ended=FAILED; failed=1; }
	summary+=("$(printf '%-34s %-7s %4d s' "$name" "$ended" $((SECONDS - began)))")
}

# gotest FLAGS… PACKAGES… runs go test and keeps its counts for the summary.
# -count=1: go would remember a success although a binary that the test runs, or
# the machine's kernel, is another one by now.
gotest() { go test -json -count=1 -timeout 20m "$@" | "$report" -counts "$work/counts"; }

# has LIST ITEM: is the item in the list of words?
has() { [[ " $1 " == *" $2 "* ]]; }

vet() {
	local module
	for module in $(scripts/modules.sh); do
		(cd "$module" && go vet ./...) || return 1
	done
}

nested() { (cd "$1" && gotest ./...); }

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
# The race detector is a C library: the only place where cgo is wanted. Tests
# that run side by side wait for the kernel (RCU), not for a CPU.
((${#race[@]})) && CGO_ENABLED=1 step "tests, race detector on" gotest -race -parallel 8 "${race[@]}"
((${#plain[@]})) && step "tests, race detector off" gotest "${plain[@]}"
((${#serial[@]})) && step "tests, one after another" gotest -p 1 -parallel 1 "${serial[@]}"
for dir in $(scripts/modules.sh); do
	[[ $dir == . ]] || step "tests, $dir" nested "$dir"
done
# Last, because it takes longest.
COUNTS=$work/counts step "tests, in the rig" scripts/test-rig.sh

echo
echo "== summary"
printf '%s\n' "${summary[@]}"
"$report" -sum "$work/counts"
exit "$failed"
