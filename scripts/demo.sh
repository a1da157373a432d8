#!/usr/bin/env bash
# The demo. Called by "make demo", which builds bin/. See
# scripts/demo/doc.go.
#
#   make demo           part 1: links, in namespaces; part 2: RDMA, in a
#                       virtual machine (QEMU; Debian packages, once)
#   make demo RIG=no    part 1 alone, where there is no QEMU and no network
#   make demo RIG=only  part 2 alone
#   make demo NICS="ens12np0 mlx5_3"
#                       part 2 on these NICs of this host, in its RDMA mode: they
#                       are lent to two pods, and returned. Others are only read
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '/^# *make/,/^set/{s/^#//p}' "${BASH_SOURCE[0]}"; }

case "${1:-}" in
'') ;;
-h | --help) usage; exit 0 ;;
*) usage >&2; exit 2 ;;
esac
RIG=${RIG:-yes}
case $RIG in
yes | no | only) ;;
*) echo "demo.sh: RIG=$RIG: it is yes, no or only" >&2; exit 2 ;;
esac

began=$(date +%s)
CGO_ENABLED=0 go build -buildvcs=false -o bin/tools/demo ./scripts/demo
if [[ $RIG != only ]]; then
	bin/tools/demo -bin "$PWD/bin"
fi
if [[ $RIG == no ]]; then
	echo
	echo "demo passed, part 1 only: RDMA was not shown (RIG=no)"
	exit 0
fi

if [[ -n ${NICS:-} ]]; then
	echo
	exec bin/tools/demo -bin "$PWD/bin" -nics "$NICS"
fi

echo
echo "Part 2 needs a kernel with an RDMA core and NICs: a virtual machine of Debian's kernel, which needs no KVM."
echo "What it is made of is downloaded and built once (~/.cache/rail-cni/rig); then it boots in about 5 seconds …"
. scripts/scratch.sh
go build -o bin/tools/rig ./integration/rig/exec
nobody=$(mktemp -d) # there are no peers in the demo
if ! RIG_LIMIT=5m RAIL_CNI_PEERS=$nobody bin/tools/rig bin/tools/demo -bin /rig/bin -rdma; then
	echo
	echo "demo FAILED in part 2, for the reason above (without QEMU or Debian packages, make demo RIG=no shows part 1 alone)" >&2
	exit 1
fi
echo
what=
[[ $RIG == only ]] && what=", part 2 only"
echo "demo passed$what: NICs and their RDMA devices were lent, carried jumbo frames, and were returned with their settings unchanged ($(($(date +%s) - began)) s)"
