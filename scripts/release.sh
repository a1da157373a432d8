#!/usr/bin/env bash
# Puts the files of a release into bin/release: the image, its SBOM, the chart, the packages of
# railctl, the manifest for krew, notes.md (the version's section of the changelog), and
# SHA256SUMS of them. Called by "make release", which makes the files.
#
#   scripts/release.sh VERSION
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${1:?a version}
rm -rf bin/release
mkdir -p bin/release
cp "bin/image/rail-cni-$version.tar" "bin/image/rail-cni-$version.spdx.json" "bin/image/rail-cni-$version.digest" bin/package/* bin/release/
for chart in bin/chart/*.tgz; do # of this version, not of an earlier one
	if tar -xzOf "$chart" rail-cni/Chart.yaml | grep -qxE "appVersion: [\"']?$version[\"']?"; then
		cp "$chart" bin/release/
	fi
done
if ! compgen -G 'bin/release/*.tgz' >/dev/null; then
	echo "release.sh: bin/chart has no chart of version $version: run make release" >&2
	exit 1
fi
awk -v begins="## $version " '/^## / { ours = index($0 " ", begins) == 1; next } ours' CHANGELOG.md >bin/release/notes.md
if [[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+$ && ! -s bin/release/notes.md ]]; then
	echo "release.sh: CHANGELOG.md has no section \"## $version\": name what changed for users" >&2
	exit 1
fi
(cd bin/release && sha256sum -- * >../SHA256SUMS && mv ../SHA256SUMS . && sha256sum --quiet -c SHA256SUMS)
ls -l bin/release
