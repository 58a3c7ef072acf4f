# Holdfast. `make help` lists the targets.
SHELL := bash
export CGO_ENABLED ?= 0

REAL     := etcd etcdctl etcdutl kube-apiserver kube-controller-manager kube-scheduler kubectl
BIN      := $(CURDIR)/bin
# What is shipped is built with these. grpcnotrace leaves out grpc's request traces, which nothing reads. They print by
# html/template, which calls methods by name: for that the linker would keep every method of every type, 38 MiB of them.
# Only what is shipped is built with -trimpath: of all else a test's packages would be compiled a second time.
TAGS     := grpcnotrace
HOLDFAST := -tags $(TAGS) -o $(BIN)/ ./cmd/holdfast ./cmd/kubectl-holdfast
# Modules beside the main one: each pins what it is made of.
GITOPS   := test/gitops test/gitops/argocd test/gitops/flux
MODULES  := test/machineapi test/monitoring test/certmanager deploy/image deploy/bundle $(GITOPS)
# Prints one line for a build, with the time that it took.
PROGRESS := $(CURDIR)/test/binaries/progress.sh
SANDBOX_FLAGS ?=
DEMO_FLAGS ?=

# A person who has the real parts points KUBEBUILDER_ASSETS at them: only what is missing there is built.
MISSING  := $(if $(KUBEBUILDER_ASSETS),$(foreach b,$(REAL),$(if $(wildcard $(KUBEBUILDER_ASSETS)/$(b)),,$(b))),$(REAL))

.DEFAULT_GOAL := help
.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: binaries parts ## Replace a Machine of a real control plane, narrated: the main job in under two minutes
	@$(BIN)/demo $(DEMO_FLAGS)

.PHONY: sandbox
sandbox: binaries parts ## Keep a real control plane running until Ctrl-C (SANDBOX_FLAGS="--replicas 5 --mode guard --cpms ...")
	@$(BIN)/sandbox up $(SANDBOX_FLAGS)

# Tests are in two tiers, by Go's -short: test/tier. Most of a test's time is waiting, so packages and tests run side by
# side, those that take longest first. test/slots limits how many control planes they run at a time. vet is a part of
# make check and make lint.
# They start hundreds of processes: with this, an API server's first ten seconds take a fifth less of a processor.
test race scenarios gitops monitoring certmanager cpms compat: export GOGC ?= 300
LONGEST := ./test/scenario ./test/install ./test/custodian ./test/model
.PHONY: test
test: binaries parts compiled ## Run the tests: decisions, webhooks on a real API server, etcd on real rings, main scenarios on the sandbox (under 10 minutes)
	@$(MAKE) --no-print-directory -j4 test-main test-machine-api test-image test-bundle

# -count 1 for modules of their own: go test's cache does not look at files outside a module, as bin/ and deploy/ are.
.PHONY: test-main test-machine-api test-image test-bundle
test-main:
	go test -short -vet=off -timeout 60m -p 6 $(LONGEST) ./...
test-machine-api:
	cd test/machineapi && go test -count 1 -timeout 20m ./...
test-image:
	cd deploy/image && go test -count 1 -timeout 20m ./...
test-bundle:
	cd deploy/bundle && go test -count 1 -timeout 20m ./...

# Nothing is compiled beside a sandbox: on two cores its API server would be too late.
.PHONY: compiled
compiled:
	@$(PROGRESS) "tests" go list -export -test -f '' ./...
	@cd test/machineapi && $(PROGRESS) "tests of machine-api" go list -export -test -f '' ./...
	@cd deploy/image && $(PROGRESS) "tests of the image" go list -export -test -f '' ./...
	@cd deploy/bundle && $(PROGRESS) "tests of the bundle" go list -export -test -f '' ./...

# What monitoring, gitops, certmanager and cpms need beside that.
.PHONY: compiled-beside
compiled-beside: binaries parts set-operator
	test/monitoring/build.sh $(BIN)
	@for m in test/monitoring $(GITOPS) test/certmanager test/cpms; do (cd $$m && $(PROGRESS) "tests of $$m" go test -run '^$$' ./...) || exit 1; done
	@$(PROGRESS) "tests of sets" go test -tags cpms -run '^$$' ./test/custodian

# With -parallel 6 the tests of all packages wait for the slots, and no package is left to the end alone.
.PHONY: scenarios
scenarios: binaries parts compiled ## Run the long scenarios: faults, chaos, partitions, restores, drains, escapes, ways in, sets of all sizes
	go test -vet=off -timeout 60m -p 6 -parallel 6 $$(test/tier/long.sh)

.PHONY: gitops
gitops: binaries parts ## Run Argo CD's and Flux's engines and kubectl against the guard (minutes; docs/gitops.md)
	@for m in $(GITOPS); do (set -x; cd $$m && go test -count 1 -timeout 10m ./...) || exit 1; done

.PHONY: monitoring
monitoring: binaries parts ## Run the alerts and the dashboard in a real Prometheus that scrapes a sandbox (minutes the first time; docs/alerts.md)
	test/monitoring/build.sh $(BIN)
	cd test/monitoring && go test -count 1 -timeout 25m ./...

.PHONY: certmanager
certmanager: binaries parts ## Run cert-manager's own controllers and CA injector beside Holdfast on a sandbox, and renew all they issue under load
	cd test/certmanager && go test -count 1 -timeout 10m ./...

# Each version is a folder of test/binaries. etcd is upgraded through those of ETCDS.
VERSIONS ?= 1.30-3.5
ETCDS    := $(BIN)/1.30-3.5/etcd:$(BIN)/1.34-3.6/etcd:$(BIN)/etcd
.PHONY: compat
compat: binaries parts compiled ## Run demo, main scenarios, webhooks, policies, install and verify on other versions of Kubernetes and etcd, and upgrade etcd (VERSIONS=1.30-3.5; docs/install.md)
	VERSIONS=$(VERSIONS) test/binaries/build.sh $(BIN)/$(VERSIONS)
	VERSIONS=1.30-3.5 test/binaries/build.sh $(BIN)/1.30-3.5 etcd
	VERSIONS=1.34-3.6 test/binaries/build.sh $(BIN)/1.34-3.6 etcd
	@echo "Two things run at a time, minutes; what each prints comes when it ends."
	@$(MAKE) --no-print-directory -j2 --output-sync=target compat-demo compat-demo-guard compat-tests compat-etcd

.PHONY: compat-demo compat-demo-guard compat-tests compat-etcd
compat-demo:
	KUBEBUILDER_ASSETS=$(BIN)/$(VERSIONS) $(BIN)/demo
compat-demo-guard:
	KUBEBUILDER_ASSETS=$(BIN)/$(VERSIONS) $(BIN)/demo --mode guard
compat-tests:
	KUBEBUILDER_ASSETS=$(BIN)/$(VERSIONS) go test -short -vet=off -count 1 -timeout 30m -p 6 ./test/install ./test/scenario ./webhooks ./internal/verify ./internal/etcd
compat-etcd:
	HOLDFAST_ETCDS=$(ETCDS) go test -tags compat -vet=off -count 1 -timeout 15m -run '^TestEtcdUpgrade$$' -v ./test/scenario

SET_OPERATOR := github.com/openshift/cluster-control-plane-machine-set-operator/cmd/control-plane-machine-set-operator
.PHONY: set-operator
set-operator: ## Build the platform's control plane machine set operator (minutes the first time), for make cpms and SANDBOX_FLAGS=--cpms
	@cd test/cpms && $(PROGRESS) control-plane-machine-set-operator go build -v -o $(BIN)/ $(SET_OPERATOR)

.PHONY: cpms
cpms: binaries parts set-operator ## Run the platform's control plane machine set operator beside Holdfast, in both modes
	go test -tags cpms -timeout 15m -run '^TestPlatformSets$$' ./test/custodian
	cd test/cpms && go test .

.PHONY: set-e2e
set-e2e: binaries parts set-operator ## Run the platform's own end-to-end tests of sets against its operator and against Holdfast (docs/full-mode.md)
	@cd test/cpms && $(PROGRESS) set-e2e go test -c -o $(BIN)/set-e2e github.com/openshift/cluster-control-plane-machine-set-operator/test/e2e
	go test -tags cpms -timeout 90m -parallel 3 -run '^TestPlatformSuite$$' -v ./test/custodian

# What make upgrade upgrades from: the latest tag before this commit, or the first version that the API server calls by a token in the path.
FROM ?= $(shell git describe --tags --abbrev=0 HEAD^ 2>/dev/null || echo a0908604527e6119785d8a0c71450feb60d102bf)
.PHONY: browser
browser: ## Open the report's page in headless Chromium (Debian: apt-get install chromium)
	go test -tags browser -timeout 10m ./internal/report

.PHONY: upgrade
upgrade: binaries parts ## Upgrade from an earlier version to this one and back, twice, under load (FROM=a commit; docs/install.md)
	test/install/from.sh $(FROM) $(BIN)/from
	HOLDFAST_FROM=$(BIN)/from go test -count 1 -timeout 10m -run '^TestUpgrade$$/^(guard_mode|(up|down)grade_under_load.*)$$' -v ./test/install

.PHONY: build
build: ## Build holdfast and the kubectl plugin
	go build -trimpath $(HOLDFAST)

.PHONY: parts
parts: ## Build holdfast, the sandbox, the demo and the Machine API controllers
	@$(PROGRESS) "holdfast and its plugin" go build -v $(HOLDFAST)
	@$(PROGRESS) "sandbox, demo and model" go build -v -o $(BIN)/ ./test/sandbox/cmd/sandbox ./test/demo ./test/model
	@cd test/machineapi && $(PROGRESS) machine-api go build -v -o $(BIN)/machine-api .

.PHONY: binaries
binaries: ## Build the control plane's parts, kubectl, etcd, etcdctl and etcdutl (minutes the first time)
	@$(if $(MISSING),test/binaries/build.sh $(BIN) $(MISSING),:)

.PHONY: docs-check
docs-check: ## Hold the documentation against the code: links, flags, names, commands (make check and make test do, too)
	go test -count 1 ./test/docs

# The longest package begins first. Properties of CEL in one goroutine: the race detector makes them last ten times as long, and sees nothing there.
ALONE := ^Test([A-Z][a-z]*Policy|Conditions)$$
CONCURRENT = $(addprefix ./,$(sort $(patsubst %/,%,$(dir $(shell grep -rlE --include='*.go' --exclude='*_test.go' '"sync["/]|\bgo func|[.]Go\b' cmd internal webhooks)))))
.PHONY: race
race: binaries parts ## Run the race detector over the packages that are concurrent (needs a C compiler)
	@$(PROGRESS) "tests for the race detector" env CGO_ENABLED=1 go list -race -export -test -f '' $(CONCURRENT)
	CGO_ENABLED=1 go test -race -vet=off -timeout 30m -p 2 -skip '$(ALONE)' ./webhooks $(filter-out ./webhooks,$(CONCURRENT))

# Packages whose tests need no built Kubernetes and take seconds.
QUICK := ./internal/quorum ./internal/admission ./internal/machineset ./internal/membership ./test/decisions ./internal/hostenv ./internal/machineapi ./internal/snapshotfile ./internal/audit ./internal/report ./internal/etcdcert \
  ./internal/plugin ./test/mutation ./test/docs
.PHONY: check
check: format linter ## Before a push: formatting, vet and lint of the changed packages, decisions, documentation; builds no Kubernetes
	@.ci/changed | while read -r module packages; do (set -x; cd $$module && $(BIN)/golangci-lint run $$packages) || exit 1; done
	go test $(QUICK)

# Its cache counts for this very program: it is the same one in each checkout and at each commit.
.PHONY: linter
linter:
	@mkdir -p $(BIN)
	@cd .ci/tools && $(PROGRESS) golangci-lint go build -v -trimpath -buildvcs=false -o $(BIN)/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: lint
lint: linter ## Run the linters, and prove that those which keep the deciding packages pure fire
	$(BIN)/golangci-lint run ./...
	@for m in $(MODULES); do (set -x; cd $$m && $(BIN)/golangci-lint run ./...) || exit 1; done
	.ci/lint-fires $(BIN)/golangci-lint

.PHONY: mutation
mutation: ## Switch off each rule and each plan step in turn; every one must fail a test
	go run ./test/mutation

FUZZTIME ?= 30s
.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME; an input that fails is kept in testdata/fuzz
	@go list -f '{{.Dir}}' ./... | while read -r dir; do \
	  for target in $$(grep -hos '^func Fuzz[A-Za-z]*' "$$dir"/*_test.go | cut -c6-); do \
	    (set -x; go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s "$$dir") </dev/null || exit 1; \
	  done || exit 1; \
	done

# One table, and bin/bench.json. Take the numbers with nothing else running: docs/proof/bench.md.
BENCH_FLAGS ?=
.PHONY: bench
bench: binaries parts ## Measure what the guard costs, against none, a webhook that does nothing and the policies alone (docs/proof/bench.md)
	set -o pipefail; go test -run '^$$' -bench . -count 6 ./test/decisions ./webhooks ./internal/machineapi | tee $(BIN)/bench-decisions.txt
	go build -o $(BIN)/ ./test/bench
	env -u GOGC $(BIN)/bench -json $(BIN)/bench.json $(BENCH_FLAGS)

CHAOS_SEED   ?= $(shell date +%s)
CHAOS_ROUNDS ?= 20
CHAOS        ?= TestChaos
.PHONY: chaos
chaos: binaries parts ## Replace Machines CHAOS_ROUNDS times with faults and hostile requests by a schedule made of CHAOS_SEED (CHAOS=TestChaosGuard in guard mode; docs/proof/invariants.md)
	CHAOS_SEED=$(CHAOS_SEED) CHAOS_ROUNDS=$(CHAOS_ROUNDS) go test -count 1 -timeout 6h -run '^$(CHAOS)$$' -v ./test/scenario

.PHONY: model
model: ## Explore every situation of small control planes with the real decisions, then plant bugs (docs/proof/invariants.md)
	go run ./test/model
	go run ./test/mutation -run model:

.PHONY: format
format:
	@test -z "$$(gofmt -l . | tee -a /dev/stderr)" || { echo "gofmt these files" >&2; exit 1; }

.PHONY: verify
verify: format ## Check formatting and go.mod files
	@for m in . $(MODULES) test/binaries test/binaries/1.30-3.5 test/binaries/1.34-3.6 test/cpms .ci/tools; do (set -x; cd $$m && go mod tidy -diff) || exit 1; done

# What a release is made of is in bin/release. IMAGE is the image's name, TAG its tag.
RELEASE  := $(BIN)/release
IMAGE    ?= holdfast
TAG      ?= $(shell git describe --tags --always --dirty)
PLATFORMS := linux-amd64 linux-arm64 linux-ppc64le linux-s390x
PLUGIN_PLATFORMS := linux-amd64 linux-arm64 linux-ppc64le linux-s390x darwin-amd64 darwin-arm64 windows-amd64 windows-arm64
# Where the plugin's archives will be downloaded from, for the manifests that name them.
DOWNLOAD ?= https://github.com/holdfast-dev/holdfast/releases/download/$(TAG)

.PHONY: manifests
manifests: binaries ## Render deploy's overlays into bin/release (IMAGE=, TAG=)
	deploy/render.sh $(firstword $(wildcard $(KUBEBUILDER_ASSETS:%=%/kubectl)) $(BIN)/kubectl) $(RELEASE) '$(IMAGE)' '$(TAG)'

# The overlay that the bundle is made of: openshift or self-signed, which differ in the webhooks' certificate and in monitoring.
BUNDLE_OVERLAY ?= openshift
.PHONY: bundle
bundle: manifests ## Make the bundle for OLM, and what OLM does not take, in bin/release (IMAGE=, TAG=; docs/install.md)
	cd deploy/bundle && go run . -manifests $(RELEASE)/holdfast-$(BUNDLE_OVERLAY).yaml -tag $(TAG) -out $(RELEASE)/bundle -beside $(RELEASE)/holdfast-beside-olm.yaml

# Needs no container runtime. $(1) is the folder of the sources, $(2) of what comes out, $(3) the builds' environment.
define build-image
	$(foreach p,$(PLATFORMS),cd $(1) && $(3) GOOS=$(word 1,$(subst -, ,$(p))) GOARCH=$(word 2,$(subst -, ,$(p))) go build -trimpath -tags $(TAGS) -ldflags='-s -w -buildid=' -o $(2)/$(p)/holdfast ./cmd/holdfast
	)set -o pipefail; cd deploy/image && go run . -binaries $(2) -out $(2)/holdfast-image.tar -version $(TAG) -revision $$(git rev-parse HEAD) -created $$(git log -1 --format=%ct) | tee $(2)/digest
endef

.PHONY: image
image: ## Pack holdfast into an OCI archive for amd64, arm64, ppc64le and s390x, always with the same digest (skopeo copy oci-archive:...)
	$(call build-image,.,$(RELEASE)/image)

.PHONY: image-again
image-again: image ## Build the image again from a copy of the commit elsewhere, without the build cache, and compare digests (minutes)
	rm -rf $(BIN)/again && mkdir -p $(BIN)/again && git clone -q . $(BIN)/again/src
	$(call build-image,$(BIN)/again/src,$(BIN)/again/image,GOCACHE=$(BIN)/again/cache)
	cmp $(RELEASE)/image/digest $(BIN)/again/image/digest
	rm -rf $(BIN)/again

.PHONY: plugins
plugins: ## Pack the kubectl plugin for Linux, macOS and Windows, with a manifest for krew and OpenShift's console (DOWNLOAD=)
	@for p in $(PLUGIN_PLATFORMS); do mkdir -p $(RELEASE)/plugins/$$p && \
	  (set -x; GOOS=$${p%-*} GOARCH=$${p#*-} go build -trimpath -ldflags='-s -w -buildid=' -o $(RELEASE)/plugins/$$p/ ./cmd/kubectl-holdfast) || exit 1; done
	cd deploy/image && go run ./plugin -binaries $(RELEASE)/plugins -license $(CURDIR)/LICENSE -out $(RELEASE) -version $(TAG) -url $(DOWNLOAD) -created $$(git log -1 --format=%ct)

.PHONY: sbom
sbom: ## Write the software bill of materials of holdfast into bin/release (CycloneDX)
	@mkdir -p $(RELEASE)
	cd deploy/image && go tool cyclonedx-gomod app -json -noserial -main cmd/holdfast -output $(RELEASE)/holdfast.cdx.json $(CURDIR)

# A private key of OpenSSH that signs SHA256SUMS, and with it all that the file lists.
SIGN_KEY ?=
.PHONY: release
release: manifests bundle image plugins sbom ## Make all that a release is made of: manifests, bundle for OLM, image, plugin, bill of materials (SIGN_KEY=)
	set -o pipefail; cd $(RELEASE) && sha256sum *.yaml *.json *.tar.gz bundle/Containerfile bundle/*/* image/holdfast-image.tar | tee SHA256SUMS
	@rm -f $(RELEASE)/SHA256SUMS.sig
	$(if $(SIGN_KEY),ssh-keygen -Y sign -f '$(SIGN_KEY)' -n holdfast-release $(RELEASE)/SHA256SUMS)

# Where the known vulnerabilities are: https://vuln.go.dev, or a copy of it (file:///...).
VULNDB ?= https://vuln.go.dev
.PHONY: vulncheck
vulncheck: ## Look for known vulnerabilities in what is shipped (needs vuln.go.dev, or VULNDB=file:///a-copy)
	@mkdir -p $(BIN)
	@cd .ci/tools && $(PROGRESS) govulncheck go build -v -o $(BIN)/govulncheck golang.org/x/vuln/cmd/govulncheck
	$(BIN)/govulncheck -db '$(VULNDB)' -tags $(TAGS) ./cmd/...

.PHONY: clean
clean: ## Remove what was built, and the sandbox
	rm -rf $(BIN) .sandbox
