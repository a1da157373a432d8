#!/usr/bin/env bash
# Lint and the tests that need neither root nor a virtual machine nor programs of
# others. Called by "make check", which sets RAIL_CNI_TESTS=quick (integration/need).
# Goes on after a failed step, and needs no root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/steps.sh

# Unlike "make test" it uses go's cache of passed tests: the kernel is not tested here.
quick() { (cd "$1" && gotest "tests-${1//\//-}" -vet=off ./...); }

step lint scripts/lint.sh
for dir in $(scripts/modules.sh); do
	step "tests, $dir" quick "$dir"
done
summary
