#!/usr/bin/env bash
# The sweeps of integration/crash at every point, its model of a node and its
# hostile pods, then the tests with RDMA in virtual machines. Called by "make
# crash", which builds the tests' binaries. Continues after a failed part, and
# prints all tables at the end.
#
#   MODEL_STEPS   number of the model's steps
#   HOSTILE_TIME  how long pods attack a node, in each of two variants, here and in the rig
#   RIG=no        without the part with RDMA
#   PART          only one: sweep, model or hostile, on this machine, or rig
#   RIG_MACHINES  number of concurrent virtual machines, default 2
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/scratch.sh
export root=$PWD logs=$PWD/bin/crash
rm -rf "$logs"
mkdir -p "$logs"
export RAIL_CNI_CRASH=full RAIL_CNI_MODEL_STEPS=${MODEL_STEPS:-10000} RAIL_CNI_HOSTILE_TIME=${HOSTILE_TIME:-10m}
export RIG_MACHINES=${RIG_MACHINES:-2}

# part NAME COMMAND… stores the command's output, and prints all but its table.
# The test programs run as they are, because "go test" shows nothing of tests
# that pass.
part() {
	local log=$logs/$1.log
	shift
	cd integration/crash
	"$@" 2>&1 | tee "$log" | sed -u '/^every point$/,$d'
}
export -f part

# Tests of the parts of this machine, as flags.
case ${PART:-} in
'' | rig) tests=() ;;
sweep) tests=(-test.skip 'Model|HostilePods|ThatPluginsGave') ;;
model) tests=(-test.run Model) ;;
hostile) tests=(-test.run 'HostilePods|ThatPluginsGave') ;;
*) echo "crash.sh: PART=$PART is no part: it is sweep, model, hostile or rig" >&2 && exit 2 ;;
esac
here=yes rig=${RIG:-yes}
case ${PART:-} in
rig) here=no ;;
?*) rig=no ;;
esac

began=$SECONDS ended=0
if [[ $here == yes ]]; then
	go test -c -o bin/tools/crash.test ./integration/crash
	(part this-machine "$root/bin/tools/crash.test" "${tests[@]}" -test.parallel 8 -test.timeout 8h) || ended=1
	echo "on this machine: $((SECONDS - began)) s"
fi

if [[ $rig != no ]]; then
	began=$SECONDS
	go build -o bin/tools/rig ./integration/rig/exec
	CGO_ENABLED=0 go test -c -tags rig -o bin/tools/crash-rig.test ./integration/crash
	bin/tools/rig build
	{
		for variant in plain userns; do
			printf '%s\0%s\0' "rig-hostile-$variant" "^TestHostilePodsHarmNobodyOnNICsWithRDMA\$/^$variant\$"
		done
		for test in NoRDMADeviceIsLostWherePlugins NoRDMADeviceIsLostWhereTheChained NoHCAIsLostWherePlugins NoIPoIBChildIsLostWherePlugins NoSettingOfAVirtualFunctionIsLost NoGUIDIsLost; do
			for mode in exclusive shared; do
				printf '%s\0%s\0' "rig-$test-$mode" "^Test$test/^$mode\$"
			done
		done
	} | xargs -0 -n 2 -P "$RIG_MACHINES" bash -euo pipefail -c \
		'part "$1" "$root/bin/tools/rig" "$root/bin/tools/crash-rig.test" -test.run "$2" -test.timeout 8h' part || ended=1
	echo "in the rig: $((SECONDS - began)) s"
fi

sed -n '/^every point$/,$p' "$logs"/*.log
exit "$ended"
