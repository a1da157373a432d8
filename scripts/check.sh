#!/usr/bin/env bash
# Lint, and the tests that need neither root nor a virtual machine nor programs of
# others. Called by "make check", which sets RAIL_CNI_TESTS=quick (integration/need).
# Goes on after a failed step, and needs no root. The linter has all analyzers of go vet.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# TMPDIR has the same name in each run, which it has not by scripts/scratch.sh: go's cache of
# passed tests depends on it. The children of a killed run hold its lock, too, until they end.
mkdir -p bin
exec {lock}>>bin/check.lock
if flock -n "$lock"; then
	export TMPDIR=${TMPDIR:-/tmp}/rail-check-$(stat -c %d-%i .)
	rm -rf --one-file-system "$TMPDIR" # of a run that was killed
	mkdir -m 700 "$TMPDIR"
	trap 'rm -rf --one-file-system "$TMPDIR"' EXIT
else
	. scripts/scratch.sh # another run goes on in this checkout
fi
. scripts/steps.sh

# Unlike "make test" it uses go's cache of passed tests: the kernel is not tested here.
quick() { (cd "$1" && gotest "tests-${1//\//-}" -vet=off ./...); }

# keep_times gives each program in bin that is what it was at the last call the time that
# it had then. go build sets the time of a program also where nothing changed, and go's
# cache knows the files that a test used by their times.
keep_times() {
	local programs=bin/programs.sum list file sum time
	local -A then=()
	[[ ! -e $programs ]] || while read -r sum time file; do then[$file $sum]=$time; done <"$programs"
	list=$(find bin bin/tools -maxdepth 1 -type f -perm -u+x -print0 | sort -z | xargs -0 sha256sum | while read -r sum file; do
		time=${then[$file $sum]:-}
		if [[ -n $time ]]; then
			touch -d "@$time" "$file"
		else
			time=$(stat -c %.9Y "$file")
		fi
		echo "$sum $time $file"
	done)
	echo "$list" >"$programs" # not a new file, which gives bin another time
}

keep_times
step lint scripts/lint.sh
for dir in $(scripts/modules.sh); do
	[[ -z $(find "$dir" -name '*_test.go' -print -quit) ]] || step "tests, $dir" quick "$dir"
done
summary
