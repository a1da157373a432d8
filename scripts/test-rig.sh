#!/usr/bin/env bash
# The tests with the build tags "rig" and "kernels", in virtual machines with
# NICs that can move (integration/rig), and those with the tag "machines", which
# start such machines themselves. Called by "make test-rig" and, as its last step,
# by "make test", both of which build the binaries that the tests run.
#
# Up to four test files of a directory share a machine, and three machines run at a time:
# an emulated CPU uses three quarters of a real one, and a boot takes five seconds. What took
# longest begins first.
#
# "make test-rig" sets RAIL_CNI_FULL=yes. Without it, the tests of scripts/long.txt are
# left out, and tests of long tables run samples.
#
#   RAIL_CNI_FULL yes: all tests except those of "make crash", without samples
#   RIG           another kernel, 5.10, 6.1, 6.18 or newest, or arm64 for a machine with arm64 and
#                 the image's programs: only the tests with the tag "kernels"
#   KEEP          a directory that takes the counts and events of the tests (testreport)
#   BASE          see scripts/long.sh
#   RIG_RUN       only the tests whose names match this extended regular expression
#   RIG_LIMIT     time limit for the tests of a machine, default 30m
#   RIG_ROUNDS    number of repetitions of measurements
#   RIG_PODS      number of pods that get a NIC by the device plugin, default 10; 100 take an
#                 hour, with RIG_LIMIT=3h
#   RIG_BATCH     number of test files that share a machine, default 4
#   RIG_ACCEL     auto (the default: KVM where it boots the machine, never with CI=true), tcg or kvm
#   RIG_MACHINES  number of concurrent machines, default 3; use 1 with one CPU,
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

. scripts/scratch.sh
go build -o bin/tools/rig ./integration/rig/exec
go build -o bin/tools/testreport ./scripts/testreport
bin/tools/rig build

work=$(mktemp -d)

# one DIR WHERE NAME TESTS runs tests of a directory, by names joined with "|", in a
# machine, or, if they start machines themselves, here.
one() {
	local dir=$1 where=$2 name=$3 tests=$4 in=()
	[[ -z ${KEEP:-} ]] || in=("$root/bin/tools/testreport" -cost-into "$KEEP" -as "$dir $name")
	[[ $where != machine ]] || in+=("$root/bin/tools/rig")
	cd "$dir"
	local events try status
	events=$(mktemp "$work/events.XXXXXX")
	for try in 1 2; do
		status=0
		go tool test2json -t -p "$dir $name" "${in[@]}" "$work/${dir//\//-}.test" \
			-test.v=test2json -test.timeout="${RIG_LIMIT:-30m}" -test.run="^($tests)\$" -test.skip="$long" >"$events" 2>&1 || status=$?
		# Once in many runs QEMU has a bug in the place of the tests (console.go).
		if ((status && try == 1)) && grep -q 'rig: the emulator corrupted the flags of a CPU' "$events"; then
			echo "once more, because QEMU corrupted the flags of a CPU: $dir $name"
			continue
		fi
		break
	done
	"$root/bin/tools/testreport" -into "${KEEP:-}" -as "rig-${dir//\//-}-${name//,/-}" <"$events" && return "$status"
}
export -f one
export root=$PWD work RIG_MACHINES=${RIG_MACHINES:-3}

# The tests of "make crash", and those that "make test" leaves out.
target=
[[ ${RAIL_CNI_FULL:-} != yes ]] || target=crash-
long=$(scripts/long.sh $target)
packages=
[[ -n $target ]] || packages=" $(scripts/long.sh packages) "
export long
export GOGC=400 # in the machines: a collection costs 20 times what it does here, and memory little

began=$SECONDS ended=0
mapfile -t files < <(grep -rlE "^//go:build ($tags)$" --include='*_test.go' --exclude-dir=bin --exclude-dir='.*' -- * | sort -t / -k 1,1r -k 2)
((${#files[@]})) || { echo "test-rig.sh: no test has a build tag of these: $tags" >&2 && exit 1; }
for dir in $(printf '%s\n' "${files[@]%/*}" | sort -u); do
	# Static, which excludes the race detector.
	CGO_ENABLED=0 GOARCH=$arch go test -c -vet=off -ldflags='-s -w' -tags rig,machines,kernels -o "$work/${dir//\//-}.test" "./$dir"
done

# flush prints the arguments of "one" for the files that were collected, if any.
dir='' names='' all='' count=0
flush() {
	((count == 0)) || printf '%s\t%s\t%s\t%s\n' "$dir" machine "$names" "$all"
	names='' all='' count=0
}
for file in "${files[@]}"; do
	[[ $packages != *" ${file%/*} "* ]] || continue
	# Tests in other files run on the host.
	tests=$(sed -nE 's/^func (Test[A-Za-z0-9_]*)\(t .*/\1/p' "$file" | grep -vE "${long:-^$}" | grep -E "${RIG_RUN:-.}" | paste -sd '|' || true)
	[[ -n $tests ]] || continue
	name=${file##*/}
	name=${name%_test.go}
	if grep -q '^//go:build machines$' "$file"; then
		printf '%s\t%s\t%s\t%s\n' "${file%/*}" here "$name" "$tests"
		continue
	fi
	[[ ${file%/*} == "$dir" ]] && ((count < ${RIG_BATCH:-4})) || flush
	dir=${file%/*} names+=${names:+,}$name all+=${all:+|}$tests
	count=$((count + 1))
done > "$work/list"
flush >> "$work/list"
# in_order prints the lines of the list, the longest batch first.
in_order() {
	awk -F '\t' '{ print $1 " " $3 }' "$work/list" |
		bin/tools/testreport -longest-first scripts/durations.txt ${KEEP:+"$KEEP.before/durations.txt"} |
		awk -F '\t' 'NR == FNR { line[$1 " " $3] = $0; next } { print line[$0] }' "$work/list" -
}
in_order | tr '\t\n' '\0\0' | xargs -0 -r -n 4 -P "$RIG_MACHINES" bash -euo pipefail -c 'one "$@"' one || ended=1
echo "in the rig: $((SECONDS - began)) s"
exit "$ended"
