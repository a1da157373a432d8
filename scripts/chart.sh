#!/usr/bin/env bash
# Packs the helm chart into bin/chart. Called by "make chart".
#
#   scripts/chart.sh VERSION [SEMANTIC-VERSION]
#
#   IMAGE  the image's name, in place of localhost/rail-cni. The chart then installs that image
#          without further values.
#   HELM   the helm to pack with
#   CHARTS the directory to write to, in place of bin/chart
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${1:?a version} semantic=${2:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -rL deployments/helm/rail-cni "$work/rail-cni" # helm warns of each symbolic link
if [[ -n ${IMAGE:-} ]]; then
	sed -i "s|^  repository: localhost/rail-cni\$|  repository: $IMAGE|" "$work/rail-cni/values.yaml"
	grep -qxF "  repository: $IMAGE" "$work/rail-cni/values.yaml" || { echo "chart.sh: values.yaml has no image.repository that is localhost/rail-cni" >&2 && exit 1; }
fi
"${HELM:-bin/tools/helm}" package "$work/rail-cni" --app-version "$version" ${semantic:+--version "$semantic"} --destination "${CHARTS:-bin/chart}"
