#!/usr/bin/env bash
# Runs a part of the long form of the tests (scripts/nightly.txt), or prints the parts.
#
#   scripts/nightly.sh [PART]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

parts() { grep -v '^#' scripts/nightly.txt; }

part=${1:-}
if [[ -z $part ]]; then
	parts
	exit 0
fi
command=$(parts | awk -v part="$part" '$1 == part { $1 = ""; print }')
if [[ -z $command ]]; then
	echo "nightly.sh: PART=$part is no part of the long form; it has: $(parts | awk '{ print $1 }' | paste -sd ' ')" >&2
	exit 2
fi
began=$SECONDS
echo "nightly.sh: $part:$command"
read -r -a words <<<"$command"
# Not the variables of the make that runs this: PART would be that of "make crash".
ended=0
env -u MAKEFLAGS -u MAKEOVERRIDES -u PART "${words[@]}" || ended=$?
echo "nightly.sh: $part took $((SECONDS - began)) s, exit code $ended"
exit "$ended"
