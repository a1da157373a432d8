#!/usr/bin/env bash
# Installs Debian packages, but only those whose command is missing:
#
#   scripts/need.sh ip:iproute2 gcc:gcc,libc6-dev
#
# Each argument is COMMAND:PACKAGE[,PACKAGE…]. Prints nothing if none is missing.
set -euo pipefail

missing=()
packages=()
for want in "$@"; do
	command=${want%%:*}
	if ! PATH=$PATH:/usr/sbin:/sbin command -v "$command" >/dev/null; then
		missing+=("$command")
		IFS=, read -r -a more <<<"${want#*:}"
		packages+=("${more[@]}")
	fi
done
((${#missing[@]})) || exit 0

echo "not on this machine: ${missing[*]}; installing ${packages[*]}"
if ! command -v apt-get >/dev/null; then
	echo "need.sh: this is not Debian or Ubuntu (no apt-get): install what gives you ${missing[*]}, then try again" >&2
	exit 1
fi
if [[ $EUID -ne 0 ]]; then
	echo "need.sh: installing needs root: run 'apt-get install ${packages[*]}' as root, then try again" >&2
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { apt-get update -q && apt-get install -q -y --no-install-recommends "${packages[@]}"; } >"$log" 2>&1; then
	tail -n 20 "$log" >&2
	echo "need.sh: apt-get could not install ${packages[*]} (its last lines are above)" >&2
	exit 1
fi
