#!/usr/bin/env bash
# Builds the site of the documents with Debian's Hugo:
#
#   scripts/docs.sh DIR VERSION   this tree, into DIR; "devel" stands for a VERSION of no release
#   scripts/docs.sh all DIR       each version of docs/site/data/versions.yaml, from the tag of its
#                                 name (devel: this tree), into DIR/VERSION
#   scripts/docs.sh serve         this tree, at a port of the loopback interface, until an interrupt
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/debian-tree.sh bin/tools/hugo hugo

hugo() {
	LD_LIBRARY_PATH=$(echo "$PWD"/bin/tools/hugo/usr/lib/*-linux-gnu) bin/tools/hugo/usr/bin/hugo --source docs/site --noBuildLock "$@"
}

case ${1:?a directory, all, or serve} in
serve)
	hugo server --bind 127.0.0.1 --disableLiveReload
	;;
all)
	to=$(realpath -m "${2:?a directory}")
	. scripts/scratch.sh
	rm -rf "$to" && mkdir -p "$to"
	first=
	for version in $(sed -n 's/^- //p' docs/site/data/versions.yaml); do
		first=${first:-$version} tree=$PWD
		if [[ $version != devel ]]; then
			tree=$TMPDIR/$version
			git rev-parse --quiet --verify "refs/tags/$version^{commit}" >/dev/null || {
				echo "docs.sh: docs/site/data/versions.yaml has $version, which is no tag of this checkout: 'git fetch --tags', or tag the release first" >&2
				exit 1
			}
			mkdir "$tree"
			git archive "$version" | tar -x -C "$tree"
			cp docs/site/data/versions.yaml "$tree/docs/site/data/"
			mkdir -p "$tree/bin/tools" && ln -s "$PWD/bin/tools/hugo" "$tree/bin/tools/"
		fi
		"$tree/scripts/docs.sh" "$to/$version" "$version"
	done
	echo "<!DOCTYPE html><meta charset=utf-8><title>rail-cni</title><meta http-equiv=refresh content='0; url=$first/index.html'><a href='$first/index.html'>rail-cni</a>" >"$to/index.html"
	;;
*)
	to=$(realpath -m "$1")
	version=devel revision=main
	[[ ! $2 =~ ^v[0-9.]+$ ]] || version=$2 revision=$2
	rm -rf "$to"
	HUGO_PARAMS_VERSION=$version HUGO_PARAMS_REVISION=$revision hugo --quiet --destination "$to"
	rm -rf "$to/en" # a redirection to the top
	;;
esac
