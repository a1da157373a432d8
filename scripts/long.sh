#!/usr/bin/env bash
# Prints the tests of scripts/long.txt that are left out, as a pattern for go test's -skip.
# "long.sh PART" prints only those of a part, "long.sh crash-" those of all such parts.
# "long.sh packages" prints the directories of the packages that are left out, in one line.
#
#   BASE  a revision: tests and packages that watch a path which changed since it are not
#         left out; standard error names them
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ -n ${BASE:-} ]] && ! git rev-parse --quiet --verify "$BASE^{commit}" >/dev/null; then
	echo "long.sh: BASE=$BASE is no revision of this checkout: name a commit, a branch or a tag ('git fetch' brings those of others)" >&2
	exit 2
fi

# changed TEST PATHS prints the first path that the test, or the package, watches and that
# changed since BASE.
changed() {
	local globs file=${1#./}
	IFS=, read -r -a globs <<<"$2"
	globs=("${globs[@]/#/:(glob)}")
	[[ $1 == ./* ]] || file=$(git grep --untracked -lE "^func ${1%%/*}\(" -- '*_test.go') || true
	{
		git diff --name-only "$BASE" -- "${globs[@]}" ${file:+"$file"}
		git ls-files --others --exclude-standard -- "${globs[@]}" ${file:+"$file"}
	} | sed -n 1p # not head, which ends its input early
}

left=() want=tests part=${1:-}
[[ $part != packages ]] || want=packages part=
while read -r name of paths _; do
	[[ $name != '#'* && -n $name && $of == "$part"* ]] || continue
	kind=tests
	[[ $name != ./* ]] || kind=packages
	[[ $kind == "$want" ]] || continue
	if [[ -n ${BASE:-} ]]; then
		path=$(changed "$name" "$paths")
		if [[ -n $path ]]; then
			echo "long.sh: $name runs too: $path changed since $BASE" >&2
			continue
		fi
	fi
	case $kind in
	tests) left+=("^${name//\//\$\/^}\$") ;; # go test splits names and patterns at slashes
	packages) left+=("${name#./}") ;;
	esac
done <scripts/long.txt
[[ $want == packages ]] || IFS='|'
echo "${left[*]}"
