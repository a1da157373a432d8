#!/usr/bin/env bash
# The tests with the build tags "rig" and "kernels", in virtual machines with
# NICs that can move (integration/rig), and those with the tag "machines", which
# start such machines themselves. Called by "make test-rig" and, as its last step,
# by "make test", both of which build the binaries that the tests run.
#
# Each test file gets a machine of its own, and two run at a time: an emulated
# CPU takes one of this machine's, and a boot takes five seconds.
#
#   RIG           another kernel, 5.10, 6.1 or 6.18, or arm64 for a machine with arm64 and
#                 the image's programs: only the tests with the tag "kernels"
#   COUNTS        a file that takes the counts for a summary
#   RIG_RUN       only the tests whose names match this extended regular expression
#   RIG_LIMIT     time limit for the tests of a file, default 15m
#   RIG_ROUNDS    number of repetitions of measurements
#   RIG_MACHINES  number of concurrent machines, default 2; use 1 with one CPU,
#                 or less than 3 GB of memory
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${RIG:-} in
'' | yes | no) # for other targets: with the rig, or without
	unset RIG
	tags='rig|machines|kernels'
	;;
*) tags=kernels ;;
esac
arch=amd64
if [[ ${RIG:-} == arm64 ]]; then
	arch=arm64
	export RAIL_CNI_BIN=$PWD/bin/image/arm64
fi

go build -o bin/tools/rig ./integration/rig/exec
go build -o bin/tools/testreport ./scripts/testreport
bin/tools/rig build

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# one FILE TESTS runs the tests of a file, by names joined with "|".
one() {
	local file=$1 tests=$2 dir=${1%/*} in=("$root/bin/tools/rig")
	! grep -q '^//go:build machines$' "$file" || in=()
	cd "$dir"
	go tool test2json -t -p "${file%_test.go}" "${in[@]}" "$work/${dir//\//-}.test" \
		-test.v=test2json -test.timeout="${RIG_LIMIT:-15m}" -test.run="^($tests)\$" 2>&1 |
		"$root/bin/tools/testreport" -counts "${COUNTS:-/dev/null}"
}
export -f one
export root=$PWD work RIG_MACHINES=${RIG_MACHINES:-2}

# Tests that are so slow that only "make crash" runs them.
long='^TestHostilePodsHarmNobodyOnNICsWithRDMA$'

began=$SECONDS ended=0
# The demo first, because a slow test must not start last.
mapfile -t files < <(grep -rlE "^//go:build ($tags)$" --include='*_test.go' --exclude-dir=bin --exclude-dir='.*' -- * | sort -t / -k 1,1r -k 2)
((${#files[@]})) || { echo "test-rig.sh: no test has a build tag of these: $tags" >&2 && exit 1; }
for dir in $(printf '%s\n' "${files[@]%/*}" | sort -u); do
	# Static, which excludes the race detector.
	CGO_ENABLED=0 GOARCH=$arch go test -c -tags rig,machines,kernels -o "$work/${dir//\//-}.test" "./$dir"
done
for file in "${files[@]}"; do
	# Tests in other files run on the host.
	tests=$(sed -nE 's/^func (Test[A-Za-z0-9_]*)\(t .*/\1/p' "$file" | grep -vE "$long" | grep -E "${RIG_RUN:-.}" | paste -sd '|' || true)
	[[ -z $tests ]] || printf '%s\0%s\0' "$file" "$tests"
done | xargs -0 -r -n 2 -P "$RIG_MACHINES" bash -euo pipefail -c 'one "$@"' one || ended=1
echo "in the rig: $((SECONDS - began)) s"
exit "$ended"
