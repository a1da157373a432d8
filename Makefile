# The commands for this tree. "make" alone lists them.
#
# Each target installs its missing Debian packages (scripts/need.sh, which reports
# them), and is quick if there is nothing to do: Go's build cache decides what is
# built again.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-builtin-rules --no-print-directory

BIN     := $(CURDIR)/bin
PEERS   := $(BIN)/peers
TOOLS   := $(BIN)/tools
# KUBERNETES=1.37: the control plane and the nodes' programs of another release
# (docs/reference/kubernetes.md).
KUBERNETES ?=
PLANE   := $(TOOLS)/controlplane$(addprefix -,$(KUBERNETES))
RUNTIME := $(TOOLS)/runtime
RUNTIME2 := $(TOOLS)/runtime2
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)

# The main packages that "make build" builds into bin/.
MAINS ?= ./plugins/host-device ./plugins/ib-sriov ./plugins/ipoib ./plugins/macvlan ./plugins/rdma ./plugins/sriov ./plugins/whereabouts ./cmd/railctl ./cmd/rail-agent \
         github.com/containernetworking/cni/cnitool

# The programs of "make image", and its architectures.
IMAGE_MAINS := $(filter ./%,$(MAINS))
ARCHS       ?= amd64 arm64

# Static, and without debug tables: each ADD reads a plugin from disk. The peers have the
# same flags, for fair comparisons.
export CGO_ENABLED ?= 0
# GOFIPS140=v1.0.0: use the FIPS 140-3 module of that version, in FIPS mode
# (https://go.dev/doc/security/fips140).
export GOFIPS140 ?= off
LDFLAGS    := -s -w -X main.version=$(VERSION)
# Without the builder's paths, in tests and lint too: Go then compiles a library once for
# all of them, and for all checkouts of a machine.
export GOFLAGS := $(strip $(filter-out -trimpath -buildvcs=%,$(GOFLAGS)) -trimpath -buildvcs=false)

# Packages (import paths without the module's) whose tests run without the race detector:
# those of a whole cluster, which also "make e2e" runs …
CLUSTERS = integration/cluster integration/devices integration/doctor integration/e2e integration/nri integration/pages integration/verify
# … those that measure time, re-execute themselves or run built programs, which are without it …
NO_RACE ?= $(CLUSTERS) cmd/rail-agent deployments/kustomize/base integration/crash integration/multus integration/owners integration/specs integration/whereabouts
# … and those that start few goroutines of ours, or whose goroutines run programs: they have it
# with FULL=yes only. So do packages without goroutines (scripts/test.sh).
RACE_IN_FULL ?= docs integration/bench integration/controlplane pkg/install/node pkg/ipam/local pkg/part/plans \
	pkg/whereabouts/block pkg/whereabouts/plugin scripts/demo
# … and those that measure a cluster, which other tests beside it would slow or starve.
ALONE = integration/doctor integration/verify

# FULL=yes: "make test" also runs the tests of scripts/long.txt, and takes no samples.
# BASE=REV: it also runs those of scripts/long.txt that watch a path which changed since REV.
FULL      ?=
BASE      ?=
# PART=…: of "make nightly", a part of scripts/nightly.txt; of "make crash", sweep, model,
# hostile or rig.
PART      ?=
FUZZTIME  ?= 60s
HOSTILE_TIME ?= 10m
BENCHARGS ?=
CLUSTERARGS ?=
# CHART=yes: "make cluster" installs rail-cni by its chart, from the image that it builds.
# JOB=yes: its nodes have the image of the job in examples/job/allreduce.yaml.
CHART     ?=
JOB       ?=
HOSTARCH   = $(shell go env GOARCH)
E2E       ?=
# RIG=no: without the virtual machine, the part of the bench with RDMA. RIG=5.10,
# RIG=6.1, RIG=6.18, RIG=newest: "make test-rig" on that kernel. RIG=arm64: on an arm64 machine.
RIG       ?= yes
# CLUSTER=no: of "make bench", without the measurements on a real API server; of "make test",
# without the tests of whole clusters.
CLUSTER   ?= yes
# PODS=no: without the measurements on a real cluster.
PODS      ?= yes

# The directories of our binaries and of others', for tests …
export RAIL_CNI_BIN   := $(BIN)
export RAIL_CNI_PEERS := $(PEERS)
# … of the control plane that they start …
export RAIL_CNI_CONTROLPLANE := $(PLANE)
export KUBERNETES
export RAIL_CNI_DEBIAN_ETCD  := $(TOOLS)/etcd-debian
export RAIL_CNI_DEBIAN_PROMETHEUS := $(TOOLS)/prometheus
# … of the names of PCI devices …
export RAIL_CNI_DEBIAN_PCI_IDS := $(TOOLS)/pci.ids
# … of the container runtime of a cluster's nodes …
export RAIL_CNI_RUNTIME := $(RUNTIME)
export RAIL_CNI_RUNTIME2 := $(RUNTIME2)
# … and of the daemons that own NICs.
export RAIL_CNI_OWNERS := $(TOOLS)/owners

.PHONY: help build image chart package release peers owners multus controlplane cluster-binaries cluster cluster-down tools demo check test rig test-rig kernels-table nightly crash e2e lint vuln bench fuzz mutants helm clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile

build: ## static binaries of all plugins, railctl, rail-agent and cnitool in bin/
	@mkdir -p '$(BIN)'
	@go build -ldflags '$(LDFLAGS)' -o '$(BIN)/' $(MAINS)
	@ln -sf railctl '$(BIN)/kubectl-rail'

# The image's programs for one architecture.
image-%:
	@echo 'building the programs of the image for $* …'
	@rm -rf '$(BIN)/image/$*' && mkdir -p '$(BIN)/image/$*' && GOARCH=$* go build -ldflags '$(LDFLAGS)' -o '$(BIN)/image/$*/' $(IMAGE_MAINS)

image: $(ARCHS:%=image-%) ## the image of rail-cni for amd64 and arm64, without Docker: an OCI layout in bin/image/rail-cni-VERSION.tar, and its SBOM (.spdx.json)
	@go run ./scripts/image -tags '$(VERSION),devel' -out '$(BIN)/image/rail-cni-$(VERSION).tar' $(ARCHS:%='$(BIN)/image/%')

# The version of a tag, as a semantic version. Without one the chart has the
# version of Chart.yaml.
SEMVER = $(shell sed -nE 's/^v?([0-9]+\.[0-9]+\.[0-9]+.*)$$/\1/p' <<<'$(VERSION)')

# IMAGE=registry.example/rail-cni/rail-cni: the chart's image, in place of localhost/rail-cni.
IMAGE ?=

chart: helm ## the helm chart with the image of this VERSION, as a file in bin/chart (IMAGE=…: the image's name)
	@HELM='$(TOOLS)/helm' IMAGE='$(IMAGE)' scripts/chart.sh '$(VERSION)' $(SEMVER)

package: image ## railctl as .deb with manual and completion, and as a plugin of kubectl for krew, in bin/package
	@scripts/package.sh '$(VERSION)' $(ARCHS)

# The chart of a release pins the image by its digest. Nodes that import the archive know the
# image by its tag only: without IMAGE there is no digest.
release: package helm ## all files of a release of one VERSION and their checksums, in bin/release: image, SBOM, chart, packages
	@HELM='$(TOOLS)/helm' IMAGE='$(IMAGE)' DIGEST="$$(cat '$(BIN)/image/rail-cni-$(VERSION).digest')" scripts/chart.sh '$(VERSION)' $(SEMVER)
	@scripts/release.sh '$(VERSION)'

peers: ## other projects' plugins for tests and bench, in bin/peers
	@scripts/programs.sh peers

multus: ## Multus, thin and thick, in bin/peers/kubernetes (its first build takes minutes)
	@scripts/programs.sh multus

controlplane: ## etcd and kube-apiserver for the tests, in bin/tools/controlplane (their first build takes minutes)
	@scripts/programs.sh controlplane

cluster-binaries: controlplane multus ## the rest of a Kubernetes cluster: the other Kubernetes programs, containerd 1.6 and 2, and runc (minutes, the first time)
	@scripts/programs.sh nodes
	@scripts/debian-files.sh containerd usr/bin/containerd:'$(RUNTIME)/containerd' usr/bin/ctr:'$(RUNTIME)/ctr' \
		usr/bin/containerd-shim-runc-v2:'$(RUNTIME)/containerd-shim-runc-v2'
	@scripts/debian-files.sh runc usr/sbin/runc:'$(RUNTIME)/runc'
	@scripts/debian-files.sh busybox-static bin/busybox:'$(RUNTIME)/busybox'
	@scripts/need.sh ip:iproute2 nsenter:util-linux

# With CHART=yes the nodes begin without our plugins, and get them from the image as nodes of users do.
cluster: peers cluster-binaries $(if $(filter yes,$(CHART)),helm image-$(HOSTARCH),build) ## run two nodes with kubelets, containerd, Multus and our plugins, until an interrupt or make cluster-down (CHART=yes: rail-cni by its image and chart; JOB=yes: with the image of examples/job; CLUSTERARGS=…)
	@go build -o '$(TOOLS)/cluster' ./integration/cluster/run
ifeq ($(CHART),yes)
	@go run ./scripts/image -tags '$(VERSION)' -out '$(BIN)/image/cluster.tar' '$(BIN)/image/$(HOSTARCH)' >/dev/null
endif
ifeq ($(JOB),yes)
	@scripts/need.sh gcc:gcc,libc6-dev
	@scripts/debian-tree.sh '$(TOOLS)/mpi' openmpi-bin libopenmpi-dev openssh-client openssh-server
	@go run ./integration/pages/image -tree '$(TOOLS)/mpi' -busybox '$(RUNTIME)/busybox' -out '$(BIN)/image/allreduce.tar'
endif
	@'$(TOOLS)/cluster' -kubeconfig '$(BIN)/kubeconfig' -pidfile '$(BIN)/cluster.pid' \
		$(if $(filter yes,$(CHART)),-chart deployments/helm/rail-cni -helm '$(TOOLS)/helm' -tag '$(VERSION)',-plugins '$(BIN)') \
		$(if $(filter yes,$(CHART)),-images '$(BIN)/image/cluster.tar') $(if $(filter yes,$(JOB)),-images '$(BIN)/image/allreduce.tar') $(CLUSTERARGS)

cluster-down: ## end the cluster of make cluster
	@if test -e '$(BIN)/cluster.pid'; then \
		kill "$$(cat '$(BIN)/cluster.pid')" 2>/dev/null || rm '$(BIN)/cluster.pid'; \
		while test -e '$(BIN)/cluster.pid'; do sleep 0.1; done; \
	fi

owners: ## NetworkManager, systemd-networkd, FRRouting and keepalived for the tests: Debian's, unpacked in bin/tools/owners
	@scripts/debian-tree.sh '$(RAIL_CNI_OWNERS)' frr keepalived network-manager systemd dbus-daemon

helm: ## helm, in bin/tools (its first build takes minutes)
	@scripts/programs.sh helm

tools: ## the linter and helm, in bin/tools (their first build takes minutes)
	@scripts/programs.sh tools helm

demo: build ## show two nodes, eight rails, two pods; then RDMA in a virtual machine (RIG=no: without; NICS="…": on these NICs of the host)
	@scripts/need.sh ip:iproute2 ping:iputils-ping
	@RIG='$(RIG)' NICS='$(NICS)' scripts/demo.sh

# Tests that need root, or programs that make builds, are skipped (quick), or fail where
# they cannot run (all). See integration/need.
check: export RAIL_CNI_TESTS := quick
test test-rig crash e2e: export RAIL_CNI_TESTS := all
# make test runs samples of long tables and leaves out long tests. The others run the
# whole tables.
test: export RAIL_CNI_FULL := $(FULL)
test-rig crash e2e: export RAIL_CNI_FULL := yes
# The model's steps: a sample in make test, the long form in make crash.
test:  MODEL_STEPS ?= $(if $(filter yes,$(FULL)),3000,480)
crash: MODEL_STEPS ?= 10000

check: build tools ## lint and the quick tests, as any user: in two minutes, once the tools are built
	@scripts/check.sh

test: build peers cluster-binaries owners tools ## lint and the tests, without some long ones (needs root: they make network namespaces; FULL=yes: with them; BASE=REV: with those whose code changed since REV)
	@scripts/need.sh ip:iproute2 ping:iputils-ping gcc:gcc,libc6-dev chromium:chromium,fonts-dejavu-core $(if $(filter yes,$(FULL))$(BASE),skopeo:skopeo xz:xz-utils)
	@scripts/debian-files.sh etcd-server usr/bin/etcd:'$(RAIL_CNI_DEBIAN_ETCD)'
	@scripts/debian-tree.sh '$(TOOLS)/hugo' hugo
	@scripts/debian-files.sh prometheus usr/bin/prometheus:'$(RAIL_CNI_DEBIAN_PROMETHEUS)/prometheus' usr/bin/promtool:'$(RAIL_CNI_DEBIAN_PROMETHEUS)/promtool'
	@scripts/debian-files.sh pci.ids usr/share/misc/pci.ids:'$(RAIL_CNI_DEBIAN_PCI_IDS)'
	@NO_RACE='$(NO_RACE) $(if $(filter yes,$(FULL)),,$(RACE_IN_FULL))' LEAVE_OUT='$(if $(filter no,$(CLUSTER)),$(CLUSTERS))' ALONE='$(ALONE)' BASE='$(BASE)' RIG='$(RIG)' \
		RAIL_CNI_MODEL_STEPS='$(MODEL_STEPS)' scripts/test.sh

# The tests on another kernel need no cluster; those on arm64 need the arm64 image's programs.
KERNEL = $(filter-out yes no,$(RIG))
test-rig: $(if $(filter arm64,$(RIG)),image-arm64,build peers) $(if $(KERNEL),,cluster-binaries owners) ## the tests that need real NICs and RDMA, in a virtual machine (RIG_RUN=…: only some; RIG=5.10, 6.1, 6.18, newest: those on another kernel; RIG=arm64: those on arm64)
	@RIG='$(KERNEL)' scripts/test-rig.sh

rig: build ## the tests of one package in a virtual machine with NICs and RDMA: PKG=./integration/rig/tests RUN=TestX (FULL=yes: without samples)
	@PKG='$(PKG)' RUN='$(RUN)' RAIL_CNI_FULL='$(FULL)' scripts/rig.sh

kernels-table: build peers ## run the tests for each kernel of the rig, and write what they find into docs/reference/kernels.md (KERNELS="6.1 …": only these)
	@KERNELS='$(KERNELS)' scripts/kernels-table.sh

nightly: ## a part of the long form of the tests (PART=…; without it, the list of the parts)
	@scripts/nightly.sh '$(PART)'

crash: build peers controlplane ## kill the plugins at each change, run a model of a node for MODEL_STEPS steps, attack a node for HOSTILE_TIME; also in the rig with RDMA (RIG=no: without; PART=sweep, model, hostile or rig: only that); one to two hours
	@scripts/need.sh ip:iproute2
	@MODEL_STEPS='$(MODEL_STEPS)' HOSTILE_TIME='$(HOSTILE_TIME)' RIG='$(RIG)' PART='$(PART)' scripts/crash.sh

e2e: build peers cluster-binaries tools ## the examples' pods on a real cluster, behind Multus thin and thick, the device plugin with a real kubelet, and railctl doctor and verify on planted defects (E2E=full: with 50 rounds of killed daemons)
	@. scripts/scratch.sh; RAIL_CNI_E2E='$(E2E)' go test -count=1 -timeout 1h -v $(CLUSTERS:%=./%)

lint: tools ## golangci-lint over all modules of the tree, and the checks of scripts/lint.sh
	@scripts/lint.sh

# It asks vuln.go.dev for the known vulnerabilities of the modules, and reports those whose code is called.
GOVULNCHECK = golang.org/x/vuln/cmd/govulncheck@v1.1.4
vuln: ## report known vulnerabilities in the modules that the programs call; needs the network
	@GOFLAGS= go run $(GOVULNCHECK) ./...

BENCHFLAGS = -bin '$(BIN)' -peers '$(PEERS)' -out '$(BIN)/bench' -label '$(VERSION)' $(BENCHARGS)

bench: build peers controlplane ## measure ADD and DEL beside other projects' plugins, on an API server (CLUSTER=no: without), with pods of a cluster (PODS=no), in the rig (RIG=no), and of many nodes (SCALE=yes); tables in bin/bench/
	@scripts/need.sh ip:iproute2 strace:strace
	@mkdir -p '$(TOOLS)'
	@go build -o '$(TOOLS)/' ./integration/bench
	@'$(TOOLS)/bench' $(BENCHFLAGS)
ifneq ($(CLUSTER),no)
	@scripts/debian-files.sh etcd-server usr/bin/etcd:'$(RAIL_CNI_DEBIAN_ETCD)'
	@echo
	@'$(TOOLS)/bench' -cluster -etcd '$(RAIL_CNI_DEBIAN_ETCD)' $(BENCHFLAGS)
endif
ifeq ($(SCALE),yes)
	@echo
	@'$(TOOLS)/bench' -scale $(BENCHFLAGS)
endif
ifneq ($(PODS),no)
	@$(MAKE) cluster-binaries
	@echo
	@'$(TOOLS)/bench' -pods $(BENCHFLAGS)
endif
ifneq ($(RIG),no)
	@go build -o '$(TOOLS)/rig' ./integration/rig/exec
	@go build -C integration/peers/plugins -ldflags '-s -w' -o '$(PEERS)/ipoib-steps' ./ipoib-steps
	@echo
	@'$(TOOLS)/bench' -rig '$(TOOLS)/rig' $(BENCHFLAGS)
endif

fuzz: ## every fuzz target of the tree for FUZZTIME each (default 60s)
	@FUZZTIME='$(FUZZTIME)' scripts/fuzz.sh

mutants: ## faults planted in the code of PKG, one at a time, which its tests and those of TESTS are to notice (ONE_IN=N: one in N of them)
	@PKG='$(PKG)' TESTS='$(TESTS)' ONE_IN='$(ONE_IN)' scripts/mutants.sh

.PHONY: docs
docs: ## the documents as a site, in bin/site (SERVE=yes: at a port of the loopback interface, until an interrupt; VERSIONS=yes: each version, from its tag)
	@scripts/docs.sh $(if $(filter yes,$(SERVE)),serve,$(if $(filter yes,$(VERSIONS)),all '$(BIN)/site','$(BIN)/site' '$(VERSION)'))

clean: ## remove the other targets' files from the tree (not Go's caches)
	@rm -rf '$(BIN)'
