#!/usr/bin/env bash
# Called by "make demo", which builds what is in bin/. See scripts/demo/doc.go.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

CGO_ENABLED=0 go build -buildvcs=false -o bin/tools/demo ./scripts/demo
exec bin/tools/demo -bin "$PWD/bin"
