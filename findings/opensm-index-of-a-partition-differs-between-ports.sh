#!/usr/bin/env bash
# OpenSM: two ports that are members of the same partitions can have their P_Keys at different indexes.
# A P_Key keeps its place in the port's table, and OpenSM puts a new P_Key after the existing ones. So the
# index shows the order in which a port joined its partitions. It does not identify the partition.
#
# Expected: both ports have the same order, either the order of partitions.conf or the order of the keys.
# Seen, with Debian 12's opensm 3.3.23 and ibsim-utils 0.10, after port b joined 0x8010 and port c joined
# 0x8030, and then each port joined the other partition too (by partitions.conf and SIGHUP):
#
#   b: 0xffff 0x8010 0x8030
#   c: 0xffff 0x8030 0x8010
#
# Programs that use verbs name a partition by its index. NCCL_IB_PKEY is one index for all devices of a
# process. An index that is right on one node can select another partition on the next node, and then the
# nodes cannot connect.
#
# Needs apt-get with Debian 12's archive, and dpkg-deb. It needs neither root nor InfiniBand, because
# ibsim simulates three HCAs on a switch in user space.
set -euo pipefail
work=$(mktemp -d)
running=()
trap 'kill "${running[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"
chmod 755 . # apt-get downloads as the user _apt
mkdir debs cache
(cd debs && apt-get download -q opensm=3.3.23-2+b1 libopensm9=3.3.23-2+b1 libosmcomp5=3.3.23-2+b1 libosmvendor5=3.3.23-2+b1 \
	ibsim-utils=0.10-2 libumad2sim0=0.10-2 infiniband-diags=44.0-2 libibmad5=44.0-2 libibnetdisc5=44.0-2 libibumad3=44.0-2 libwrap0 >/dev/null 2>&1)
for deb in debs/*.deb; do dpkg-deb -x "$deb" tree; done
export LD_LIBRARY_PATH=$work/tree/usr/lib/x86_64-linux-gnu:$work/tree/lib/x86_64-linux-gnu OSM_CACHE_DIR=$work/cache OSM_TMP_DIR=$work
simulated=$work/tree/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so

cat >net <<'NET'
Switch	8 "switch"
[1]	"manager"[1]
[2]	"b"[1]
[3]	"c"[1]

Hca	1 "manager"
[1]	"switch"[1]

Hca	1 "b"
[1]	"switch"[2]

Hca	1 "c"
[1]	"switch"[3]
NET
mkfifo commands
exec 3<>commands # ibsim ends when its input ends
tree/usr/bin/ibsim -s -n net <commands >ibsim.log 2>&1 &
running+=($!)
disown
# within SECONDS COMMAND… waits for up to SECONDS until the command succeeds.
within() {
	local end=$((SECONDS + $1))
	shift
	until "$@"; do
		if ((SECONDS >= end)); then
			echo "still waiting for: $*" >&2
			exit 1
		fi
		sleep 0.1
	done
}
within 20 grep -q ready ibsim.log
on() { SIM_HOST=$1 LD_PRELOAD=$simulated "${@:2}"; }
b=$(on b tree/usr/sbin/ibstat -p) c=$(on c tree/usr/sbin/ibstat -p)

# partitions RED BLUE writes the members of two partitions.
partitions() {
	printf 'Default=0x7fff : ALL=full ;\nred=0x0010 : %s ;\nblue=0x0030 : %s ;\n' "$1" "$2" >partitions.new
	mv partitions.new partitions.conf
}
partitions "$b=full" "$c=full"
printf 'force_log_flush TRUE\n' >opensm.conf
SIM_HOST=manager LD_PRELOAD=$simulated tree/usr/sbin/opensm -F opensm.conf -f "$work/log" -P "$work/partitions.conf" >opensm.out 2>&1 &
manager=$!
running+=("$manager")
disown
table() { on "$1" tree/usr/sbin/smpquery -D pkeys 0 1 2>/dev/null | sed -n 's/^ *0: *//p' | head -n 1 | sed 's/ 0x0000//g; s/ *$//'; }
has() { [[ $(table "$1") == *$2* ]]; }
within 30 has b 0x8010
within 30 has c 0x8030
partitions "$b=full, $c=full" "$b=full, $c=full"
kill -HUP "$manager"
within 30 has b 0x8030
within 30 has c 0x8010
seen="b: $(table b)
c: $(table c)"
echo "$seen"
if [[ $seen != "b: 0xffff 0x8010 0x8030
c: 0xffff 0x8030 0x8010" ]]; then
	echo "this is no longer so" >&2
	exit 1
fi
