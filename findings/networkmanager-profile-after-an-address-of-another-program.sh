#!/usr/bin/env bash
# NetworkManager: a NIC has a profile with autoconnect=yes, and no carrier yet. If another program adds
# an address before the NIC has a carrier, NetworkManager never activates the profile, because it assumes
# that another program has configured the NIC. The addresses and routes of the profile stay missing, and
# NetworkManager does not log a warning.
#
# Expected: when the NIC gets a carrier, NetworkManager activates the profile, and keeps or replaces the
# address.
# Seen, with Debian 12's NetworkManager 1.42.4-1+deb12u1:
#
#   no address:     auto-activating connection 'rail', then 10.1.0.5/24
#   10.2.0.7/24:    unavailable -> disconnected (reason 'connection-assumed'), then 10.2.0.7/24 only
#
# This affects a program that moves a NIC into a host's network namespace and restores the NIC's addresses.
# Whether the profile is activated depends on what is first, the address or the carrier. `nmcli connection up`
# activates the profile later.
#
# Needs root, unshare(1), iproute2, dbus-daemon, and apt-get with Debian 12's packages.
set -euo pipefail
version=1.42.4-1+deb12u1
if [[ -z ${INSIDE:-} ]]; then
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	chmod 755 "$work" # apt downloads as the user _apt
	mkdir "$work/debs" "$work/tree"
	(cd "$work/debs" && apt-get download -q "network-manager=$version" "libnm0=$version" libndp0 libteamdctl0 libbluetooth3 libmm-glib0 libnewt0.52 \
		libcurl3-gnutls libjansson4 libpsl5 libslang2 >"$work/log" 2>&1) || { cat "$work/log" >&2; exit 1; }
	for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/tree"; done
	script=$(realpath "$0")
	INSIDE=$work unshare --net --mount --pid --fork --kill-child bash "$script"
	exit
fi
work=$INSIDE lib=$work/tree/usr/lib/x86_64-linux-gnu
mkdir "$work/run" "$work/profiles" "$work/none"
mount --bind "$work/run" /run
mount -t proc proc /proc
mount -t tmpfs none /var/lib
mount -o remount,bind,ro /sys # a read-only /sys tells NetworkManager that udev does not run
cat >"$work/bus.conf" <<'BUS'
<busconfig><listen>unix:path=/run/bus</listen><auth>EXTERNAL</auth><policy context="default">
<allow user="*"/><allow own="*"/><allow send_type="method_call"/><allow send_type="signal"/><allow send_requested_reply="true"/>
<allow receive_type="method_call"/><allow receive_type="signal"/><allow receive_requested_reply="true"/></policy></busconfig>
BUS
cat >"$work/nm.conf" <<CONF
[main]
plugins=keyfile
dns=none
rc-manager=unmanaged
auth-polkit=false
no-auto-default=*
[keyfile]
path=$work/profiles
unmanaged-devices=*,except:interface-name:nic0
CONF
cat >"$work/profiles/rail.nmconnection" <<'PROFILE'
[connection]
id=rail
uuid=8b1f5e2c-0d0b-4c3a-9a6e-0f6a2f3c1d11
type=ethernet
interface-name=nic0
[ipv4]
method=manual
address1=10.1.0.5/24
[ipv6]
method=disabled
PROFILE
chmod 600 "$work/profiles/rail.nmconnection"
export DBUS_SYSTEM_BUS_ADDRESS=unix:path=/run/bus
dbus-daemon --config-file="$work/bus.conf" --nofork --nopidfile 2>"$work/bus.log" &
until [[ -S /run/bus ]]; do sleep 0.1; done

await() { for _ in {1..300}; do ! grep -q "$1" "$work/nm.log" || return 0; sleep 0.1; done; cat "$work/nm.log" >&2; echo "no $1" >&2; exit 1; }
seen() { # seen ADDRESS: what happens to the NIC if the address is added before the NIC has a carrier
	rm -f /run/nm.*
	ip link add name nic0 type veth peer name peer0
	LD_LIBRARY_PATH=$lib "$work/tree/usr/sbin/NetworkManager" --debug --config="$work/nm.conf" --config-dir="$work/none" --system-config-dir="$work/none" \
		--intern-config="$work/none/i" --state-file=/run/nm.state --pid-file=/run/nm.pid >"$work/nm.log" 2>&1 &
	local manager=$!
	await '(nic0): state change: unmanaged -> unavailable'
	[[ -z $1 ]] || ip addr add "$1" dev nic0
	sleep 1
	ip link set peer0 up
	await '(nic0): Activation: successful'
	grep -o "auto-activating connection '[a-z]*'\|unavailable -> disconnected (reason 'connection-assumed'" "$work/nm.log"
	ip -4 -o addr show dev nic0 | awk '{ print $4 }'
	kill "$manager"
	wait "$manager" || true
	ip link del nic0
}
now=$(seen "")
now+=$'\n'$(seen 10.2.0.7/24)
echo "$now"
[[ $now == "auto-activating connection 'rail'
10.1.0.5/24
unavailable -> disconnected (reason 'connection-assumed'
10.2.0.7/24" ]]
