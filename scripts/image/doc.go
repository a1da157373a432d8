// Image packs the image of rail-cni, without Docker and without a registry: an
// OCI image layout (image-spec v1.1) in one tar file, with an image for each
// architecture and nothing in it but our static programs. "make image" runs it;
// `ctr -n k8s.io images import`, podman, skopeo and Docker 25 read it.
//
//	image -tags v1 -out rail-cni-v1.tar bin/image/amd64 bin/image/arm64
//
// It also writes rail-cni-v1.spdx.json, the modules that each program was linked
// from by its own build information, and rail-cni-v1.digest, the image's digest, which
// it also prints.
//
// Each argument is a directory named as Go names the architecture, with the
// programs rail-agent and railctl, and the plugins. The same programs make the
// same files, byte for byte: no time, owner or host is in them.
package main
