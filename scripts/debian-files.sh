#!/usr/bin/env bash
# Puts Debian's etcd at the given path, without installing its package, which
# would start a service. Does nothing when it is there.
#
#   scripts/debian-etcd.sh bin/tools/etcd-debian
set -euo pipefail
to=${1:?where to put it}
[[ -x $to ]] && exit 0
scripts=$(dirname "${BASH_SOURCE[0]}")
"$scripts/need.sh" dpkg-deb:dpkg apt-get:apt
to=$(realpath -m "$to")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
chmod 755 . # apt fetches as a user of its own
echo "fetching Debian's etcd"
if ! { apt-get download -q etcd-server || { apt-get update -q && apt-get download -q etcd-server; }; } >log 2>&1; then
	tail -n 20 log >&2
	echo "debian-etcd.sh: apt-get could not download etcd-server (its last lines are above)" >&2
	exit 1
fi
dpkg-deb -x etcd-server_*.deb tree
install -D tree/usr/bin/etcd "$to"
