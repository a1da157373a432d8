#!/usr/bin/env bash
# Extracts files of a Debian package without installing it, which might start
# a service. Does nothing if they exist.
#
#   scripts/debian-files.sh etcd-server usr/bin/etcd:bin/tools/etcd-debian
#
# After the package's name come FILE:TO: the path in the package and the target.
set -euo pipefail
package=${1:?a package}
shift
complete=yes
for file in "$@"; do
	[[ -x ${file#*:} ]] || complete=no
done
[[ $complete = no ]] || exit 0
scripts=$(dirname "${BASH_SOURCE[0]}")
"$scripts/need.sh" dpkg-deb:dpkg apt-get:apt
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
chmod 755 . # apt fetches as a user of its own
echo "fetching Debian's $package"
if ! { apt-get download -q "$package" || { apt-get update -q && apt-get download -q "$package"; }; } >log 2>&1; then
	tail -n 20 log >&2
	echo "debian-files.sh: apt-get could not download $package (its last lines are above)" >&2
	exit 1
fi
dpkg-deb -x "$package"_*.deb tree
for file in "$@"; do
	(cd "$root" && install -D "$work/tree/${file%%:*}" "${file#*:}")
done
