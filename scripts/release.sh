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
# section NAME prints a section of the changelog, and fails if nothing is in it.
section() {
	local text
	text=$(awk -v begins="## $1 " '/^## / { ours = index($0 " ", begins) == 1; next } ours' CHANGELOG.md)
	[[ $text = *[![:space:]]* ]] && printf '%s\n' "${text#$'\n'}"
}
if [[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+$ ]]; then
	section "$version" >bin/release/notes.md || {
		echo "release.sh: CHANGELOG.md has no section \"## $version\": name what changed for users" >&2
		exit 1
	}
	grep -qxF -- "- $version" docs/site/data/versions.yaml || {
		echo "release.sh: docs/site/data/versions.yaml lacks \"- $version\": the site of the documents would not have it" >&2
		exit 1
	}
else # a candidate of a version whose section is there, or not yet
	candidate_of=
	[[ ! $version =~ ^(v[0-9]+\.[0-9]+\.[0-9]+)-[a-z] ]] || candidate_of=${BASH_REMATCH[1]}
	section "$version" >bin/release/notes.md || section "${candidate_of:-none}" >bin/release/notes.md || section Unreleased >bin/release/notes.md ||
		echo "CHANGELOG.md has nothing about $version." >bin/release/notes.md
fi
(cd bin/release && sha256sum -- * >../SHA256SUMS && mv ../SHA256SUMS . && sha256sum --quiet -c SHA256SUMS)
ls -l bin/release
