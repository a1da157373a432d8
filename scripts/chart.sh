#!/usr/bin/env bash
# Packs the helm chart into bin/chart. Called by "make chart".
#
#   scripts/chart.sh VERSION [SEMANTIC-VERSION]
#
#   IMAGE  the image's name, in place of localhost/rail-cni. The chart then installs that image
#          without further values.
#   DIGEST with IMAGE: the image's digest, which the chart then pins
#   HELM   the helm to pack with
#   CHARTS the directory to write to, in place of bin/chart
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${1:?a version} semantic=${2:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -rL deployments/helm/rail-cni "$work/rail-cni" # helm warns of each symbolic link

# put FILE OLD NEW replaces the line OLD of the chart's FILE. A comment behind it stays.
put() {
	local file=$work/rail-cni/$1
	[[ $(grep -cE "^$2( +#.*)?\$" "$file") = 1 ]] || { echo "chart.sh: $1 of the chart must have one line \"$2\"" >&2 && exit 1; }
	sed -i -E "s|^$2( +#.*)?\$|$3\\1|" "$file"
}

put Chart.yaml '      image: localhost/rail-cni:devel' "      image: ${IMAGE:-localhost/rail-cni}:$version" # artifacthub.io/images
if [[ -n ${IMAGE:-} ]]; then
	put values.yaml '  repository: localhost/rail-cni' "  repository: $IMAGE"
	[[ -z ${DIGEST:-} ]] || put values.yaml '  digest: ""' "  digest: $DIGEST"
fi
"${HELM:-bin/tools/helm}" package "$work/rail-cni" --app-version "$version" ${semantic:+--version "$semantic"} --destination "${CHARTS:-bin/chart}"
