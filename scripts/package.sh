#!/usr/bin/env bash
# Packs railctl for people's machines, into bin/package:
#
#   rail-cni-tools_VERSION_ARCH.deb    railctl, also as kubectl-rail, its manual pages, and completion
#   kubectl-rail_VERSION_linux_ARCH.tar.gz  the same program, for krew and for systems without dpkg
#   rail.yaml                          the manifest of krew, with the archives' checksums
#
#   scripts/package.sh VERSION ARCH…
#
# It takes the programs of bin/image/ARCH ("make image"). The same sources make the same files,
# byte for byte: their time is that of the commit, or SOURCE_DATE_EPOCH.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${1:?a version}
shift
(($# > 0)) || { echo "package.sh: name an architecture: package.sh $version amd64" >&2 && exit 2; }
scripts/need.sh dpkg-deb:dpkg xz:xz-utils gzip:gzip

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C
umask 022
programs=${PROGRAMS:-bin/image} out=${PACKAGES:-bin/package}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$out"
mkdir -p "$out" "$work/man"

# A version of Debian begins with a digit, and orders a "~" before the end.
debian=${version#v}
debian=${debian//-/\~}
[[ $debian == [0-9]* ]] || debian=0~${debian//[^A-Za-z0-9.+~]/.}

# The manual and completion are the same for each architecture: railctl of this machine writes
# them.
go build -tags man -ldflags "-X main.version=$version" -o "$work/railctl" ./cmd/railctl
"$work/railctl" man "$work/man"
rm -f "$work"/man/*-completion*
gzip -9 -n "$work"/man/*
ln -s railctl.1.gz "$work/man/kubectl-rail.1.gz"

# timed DIR gives all that is in it the time of the sources.
timed() { find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +; }

archives=()
for arch; do
	program=$programs/$arch/railctl
	[[ -f $program ]] || { echo "package.sh: $program is missing: run make image VERSION=$version" >&2 && exit 1; }

	archive=kubectl-rail_${version}_linux_$arch.tar.gz
	mkdir "$work/krew-$arch"
	install -m 755 "$program" "$work/krew-$arch/kubectl-rail"
	install -m 644 LICENSE "$work/krew-$arch/"
	timed "$work/krew-$arch"
	tar -C "$work/krew-$arch" --sort=name --format=ustar --owner=0 --group=0 --numeric-owner -cf - LICENSE kubectl-rail |
		gzip -9 -n >"$out/$archive"
	archives+=("$arch $archive")

	root=$work/deb-$arch
	install -D -m 755 "$program" "$root/usr/bin/railctl"
	ln -s railctl "$root/usr/bin/kubectl-rail"
	mkdir -p "$root/usr/share/man" "$root/DEBIAN"
	cp -a "$work/man" "$root/usr/share/man/man1"
	"$work/railctl" completion bash | install -D -m 644 /dev/stdin "$root/usr/share/bash-completion/completions/railctl"
	"$work/railctl" completion zsh | install -D -m 644 /dev/stdin "$root/usr/share/zsh/vendor-completions/_railctl"
	"$work/railctl" completion fish | install -D -m 644 /dev/stdin "$root/usr/share/fish/vendor_completions.d/railctl.fish"
	# kubectl completes a plugin by a program of this name.
	printf '#!/bin/sh\nexec railctl __complete "$@"\n' | install -D -m 755 /dev/stdin "$root/usr/bin/kubectl_complete-rail"
	install -D -m 644 LICENSE "$root/usr/share/doc/rail-cni-tools/copyright"
	# KiB, as Debian's policy 5.6.20 counts: a directory has another size on each file system.
	size=$(find "$root/usr" -printf '%y %s\n' | awk '{ kib += $1 == "f" ? int(($2 + 1023) / 1024) : 1 } END { print kib }')
	cat >"$root/DEBIAN/control" <<-END
		Package: rail-cni-tools
		Version: $debian
		Architecture: $arch
		Maintainer: The rail-cni authors <https://github.com/rail-cni/rail-cni>
		Installed-Size: $size
		Section: net
		Priority: optional
		Homepage: https://github.com/rail-cni/rail-cni
		Description: command line of rail-cni, RDMA networks for pods
		 railctl shows which pods of a node have which NICs and RDMA devices, finds
		 defects of rails, and measures them between nodes. kubectl runs it as
		 "kubectl rail".
	END
	(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$work/md5sums"
	install -m 644 "$work/md5sums" "$root/DEBIAN/md5sums"
	timed "$root"
	dpkg-deb --root-owner-group --threads-max=1 -Zxz --build "$root" "$out/rail-cni-tools_${debian}_$arch.deb" >/dev/null
done

# The manifest of krew (https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/).
{
	cat <<-END
		apiVersion: krew.googlecontainertools.github.com/v1alpha2
		kind: Plugin
		metadata:
		  name: rail
		spec:
		  version: v${version#v}
		  homepage: https://github.com/rail-cni/rail-cni
		  shortDescription: Inspect RDMA rails of nodes and pods
		  description: |
		    Finds defects of the rails of a cluster that rail-cni serves, measures rails between
		    nodes, and shows which pods have which NICs and RDMA devices.
		  platforms:
	END
	for each in "${archives[@]}"; do
		read -r arch archive <<<"$each"
		sum=$(sha256sum "$out/$archive")
		cat <<-END
			  - selector:
			      matchLabels:
			        os: linux
			        arch: $arch
			    uri: https://github.com/rail-cni/rail-cni/releases/download/$version/$archive
			    sha256: ${sum%% *}
			    bin: kubectl-rail
			    files:
			    - from: kubectl-rail
			      to: .
			    - from: LICENSE
			      to: .
		END
	done
} >"$out/rail.yaml"
