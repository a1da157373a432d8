#!/usr/bin/env bash
# iproute2: "ip route show table all" prints the routes of IPv4 and of IPv6. "ip route show table N" and
# "ip rule show" print only the routes and rules of IPv4. The JSON output does not name the family: an
# IPv6 default route by a link looks like an IPv4 default route, except for the field "pref". Also,
# "ip route flush table N" does not remove the routes of IPv6.
#
# Expected: all these commands use only IPv4 without -6, or a field of the output names the family.
# Seen, with Debian 12's iproute2 6.1.0, in a namespace where each family has a rule and a default route
# in table 1001, as with the source routing of a pod's rail:
#
#   routes to "default", table all: 2
#   routes to "default", table 1001: 1
#   rules that lead to table 1001: 1, with -6: 1
#   after "ip route flush table 1001": 0, with -6: 1
#
# A script that counts a pod's default routes in all tables counts each rail twice. A script that
# compares the rules before and after a pod misses the IPv6 rules. A script that empties the tables of a
# rail leaves the IPv6 routes there. Write -4 or -6 in each command.
#
# Needs root (to make a network namespace), apt-get with Debian 12's archive, dpkg-deb and
# unshare(1).
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
chmod 755 . # apt-get downloads as the user _apt
mkdir debs
(cd debs && apt-get download -q iproute2=6.1.0-3 libbpf1=1:1.1.2-0+deb12u1 libelf1=0.188-2.1 libmnl0=1.0.4-3 >/dev/null 2>&1)
for deb in debs/*.deb; do dpkg-deb -x "$deb" tree; done
export LD_LIBRARY_PATH=$work/tree/usr/lib/x86_64-linux-gnu:$work/tree/lib/x86_64-linux-gnu PATH=$work/tree/bin:$work/tree/sbin:$PATH
cat >look.sh <<'LOOK'
set -euo pipefail
# count PATTERN prints how often the pattern occurs in the input.
count() { grep -o -- "$1" | wc -l || true; }
ip link add rail0 type veth peer name switch0
ip link set rail0 up
ip link set switch0 up
ip rule add from 10.3.0.5 lookup 1001 priority 500
ip -6 rule add from fd00:3::5 lookup 1001 priority 500
ip route add default dev rail0 table 1001
ip -6 route add default dev rail0 table 1001
echo "routes to \"default\", table all: $(ip -j route show table all | count '"dst":"default"')"
echo "routes to \"default\", table 1001: $(ip -j route show table 1001 | count '"dst":"default"')"
echo "rules that lead to table 1001: $(ip rule show | count 1001), with -6: $(ip -6 rule show | count 1001)"
ip -j route show table all | grep -q family && echo "the JSON names the family"
ip route flush table 1001
echo "after \"ip route flush table 1001\": $(ip -4 route show table all | count 'table 1001'), with -6: $(ip -6 route show table all | count 'table 1001')"
LOOK
ip -V
unshare --net bash look.sh | tee seen
cat >expected <<'SEEN'
routes to "default", table all: 2
routes to "default", table 1001: 1
rules that lead to table 1001: 1, with -6: 1
after "ip route flush table 1001": 0, with -6: 1
SEEN
diff expected seen && echo "as seen before"
