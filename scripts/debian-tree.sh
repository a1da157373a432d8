#!/usr/bin/env bash
# Unpacks Debian packages into a directory, with those that they depend on and this machine
# lacks. Installs nothing, which might start a service. Does nothing if the directory exists.
#
#   scripts/debian-tree.sh bin/tools/owners frr keepalived
set -euo pipefail
to=${1:?a directory}
shift
[[ ! -d $to ]] || exit 0
scripts=$(dirname "${BASH_SOURCE[0]}")
"$scripts/need.sh" dpkg-deb:dpkg apt-get:apt
work=$(mktemp -d)
trap 'rm -rf "$work" "$to.new"' EXIT
chmod 755 "$work" # apt fetches as a user of its own
mkdir "$work/debs"

# fetch downloads the packages, and those that an installation would bring or renew.
fetch() {
	local more
	more=$(apt-get install -q --simulate --no-install-recommends "$@" | awk '$1 == "Inst" {print $2}') || return
	# shellcheck disable=SC2046,SC2086 # words
	(cd "$work/debs" && apt-get download -q $(printf '%s\n' "$@" $more | sort -u))
}

echo "fetching Debian's $*"
if ! { fetch "$@" || { apt-get update -q && fetch "$@"; }; } >"$work/log" 2>&1; then
	tail -n 20 "$work/log" >&2
	echo "debian-tree.sh: apt-get could not download $* (its last lines are above)" >&2
	exit 1
fi
mkdir -p "$to.new"
for deb in "$work"/debs/*.deb; do
	dpkg-deb -x "$deb" "$to.new"
done
mv -T "$to.new" "$to"
