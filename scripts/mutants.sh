#!/usr/bin/env bash
# Plants faults in packages and runs their tests (scripts/mutants). Called by "make mutants".
#
#   PKG      directories of packages, with all below them; pkg/ledger and pkg/statefile
#   TESTS    packages whose tests run as well, such as ./pkg/part/plans
#   ONE_IN   of so many mutants one is tested, each day another
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/scratch.sh
scripts/need.sh ip:iproute2 unshare:util-linux
go build -o bin/tools/mutants ./scripts/mutants
read -r -a packages <<<"${PKG:-pkg/ledger pkg/statefile}"
bin/tools/mutants -one-in "${ONE_IN:-1}" -tests "${TESTS:-}" "${packages[@]}"
