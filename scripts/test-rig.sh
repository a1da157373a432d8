#!/usr/bin/env bash
# The tests with the build tag "rig", in a virtual machine with NICs that can
# move (integration/rig). Called by "make test-rig" and, as its last step, by
# "make test", both of which build the binaries that the tests run.
#
#   COUNTS    a file that takes the counts for a summary
#   RIG_RUN   only the tests that match, as for go test -run
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

go build -o bin/tools/rig ./integration/rig/exec
go build -o bin/tools/testreport ./scripts/testreport
bin/tools/rig build

# Packages may have other tests beside these, for the host.
mapfile -t files < <(git grep -l --untracked '^//go:build rig$' -- '*_test.go')
mapfile -t packages < <(printf './%s\n' "${files[@]}" | xargs -n 1 dirname | sort -u)
tests=$(sed -nE 's/^func (Test[A-Za-z0-9_]*)\(t .*/\1/p' "${files[@]}" | paste -sd '|')

began=$SECONDS ended=0
# One machine at a time, and static binaries only: no race detector.
CGO_ENABLED=0 go test -json -tags rig -count=1 -p 1 -timeout 15m -exec "$PWD/bin/tools/rig" -run "${RIG_RUN:-^($tests)\$}" "${packages[@]}" |
	bin/tools/testreport -counts "${COUNTS:-/dev/null}" || ended=$?
echo "in the rig: $((SECONDS - began)) s"
exit "$ended"
