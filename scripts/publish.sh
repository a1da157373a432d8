#!/usr/bin/env bash
# Pushes the image and the chart of bin/release ("make release") to a registry, and signs them:
#
#   scripts/publish.sh VERSION REGISTRY
#
# With the registry "registry.example/rail-cni" the image is registry.example/rail-cni/rail-cni,
# and the chart oci://registry.example/rail-cni/charts/rail-cni.
#
#   USERNAME, PASSWORD  of the registry; without them the login of skopeo and helm is used
#   PLAIN=yes           the registry speaks HTTP, as one of a test does
#   COSIGN              the command of cosign, such as "cosign" (signs without a key, by the
#                       identity of the workflow that runs it); without it nothing is signed
#   FILES               the directory of the files instead of bin/release
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${1:?a version} registry=${2:?a registry, such as registry.example/rail-cni}
files=${FILES:-bin/release} helm=${HELM:-bin/tools/helm}
scripts/need.sh skopeo:skopeo
(cd "$files" && sha256sum --quiet -c SHA256SUMS)

image=$registry/rail-cni
tls=() plain=()
if [[ ${PLAIN:-} = yes ]]; then
	tls=(--dest-tls-verify=false) plain=(--plain-http)
fi
if [[ -n ${USERNAME:-} ]]; then
	login=$(mktemp -d)
	trap 'rm -rf "$login"' EXIT
	# One file for skopeo, cosign and helm.
	export REGISTRY_AUTH_FILE=$login/config.json DOCKER_CONFIG=$login HELM_REGISTRY_CONFIG=$login/config.json
	skopeo login --username "$USERNAME" --password-stdin "${registry%%/*}" <<<"${PASSWORD:?}"
fi

# --preserve-digests: or skopeo might change the image, and the chart of a release names its digest.
skopeo copy --all --preserve-digests "${tls[@]}" "oci-archive:$files/rail-cni-$version.tar:$version" "docker://$image:$version"
charts=()
for chart in "$files"/*.tgz; do
	# helm tells the digest on standard error only.
	pushed=$("$helm" push "${plain[@]}" "$chart" "oci://$registry/charts" 2>&1) || { echo "$pushed" >&2 && exit 1; }
	echo "$pushed" >&2
	digest=$(sed -n 's/^Digest: *\(sha256:[0-9a-f]\{64\}\)$/\1/p' <<<"$pushed")
	[[ -n $digest ]] || { echo "publish.sh: helm push names no digest of $chart" >&2 && exit 1; }
	charts+=("$registry/charts/rail-cni@$digest")
done

digest=$(<"$files/rail-cni-$version.digest")
if [[ -n ${COSIGN:-} ]]; then
	$COSIGN sign --yes "$image@$digest"
	for chart in "${charts[@]}"; do
		$COSIGN sign --yes "$chart"
	done
	$COSIGN attest --yes --type spdxjson --predicate "$files/rail-cni-$version.spdx.json" "$image@$digest"
	$COSIGN sign-blob --yes --bundle "$files/SHA256SUMS.sigstore.json" "$files/SHA256SUMS"
else
	echo "publish.sh: COSIGN is not set: nothing is signed" >&2
fi
echo "$image@$digest"
