# The two commands a new user needs are `make demo` and `make test`. Both need Go
# and make only; everything builds without a C compiler. `make demo-s3` needs
# python3 and pip as well, `make demo-fluss` Java and Maven.

export CGO_ENABLED ?= 0
GO      ?= go
BIN     := bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)

.PHONY: all build demo demo-s3 demo-fluss test test-race test-stores-full test-cluster-full bench lint fuzz clean help

all: build

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

build: ## build bin/sluiced and bin/sluice
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/...

demo: build ## load 135,233 places through a real sluiced and read them back (DEMO_DIR=path KEEP=1 keep its files)
	$(GO) run ./test/demo -bin $(BIN) -input test/testdata/cities/cities.csv.gz -dir "$(DEMO_DIR)" $(if $(KEEP),-keep)

demo-s3: build ## the same on an S3 server that it installs, starts and stops, by gateway, sign and sts (needs python3 and pip)
	$(GO) run ./test/demo -s3 -bin $(BIN) -input test/testdata/cities/cities.csv.gz -dir "$(DEMO_DIR)" $(if $(KEEP),-keep)

demo-fluss: build ## the same into a Fluss cluster that it installs, starts and stops (needs Java 17 and Maven)
	$(GO) run ./test/demo -fluss -bin $(BIN) -input test/testdata/cities/cities.csv.gz -dir "$(DEMO_DIR)" $(if $(KEEP),-keep)

# Prints one line per package, and at the end every skipped test with its reason.
GOTESTSUM   := $(GO) run gotest.tools/gotestsum@v1.13.0 --format pkgname-and-test-fails
STATICCHECK := $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2

test: ## run every test; those that need a missing tool say so and are skipped
	$(GOTESTSUM) -- -timeout 20m ./...

test-race: ## the same under the race detector (needs a C compiler)
	CGO_ENABLED=1 $(GOTESTSUM) -- -race -timeout 40m ./...

test-stores-full: ## the store tests, against a Ceph RGW as well (Debian: apt-get install radosgw ceph-mon ceph-osd ceph-mgr ceph-common)
	SLUICE_STORES_FULL=1 SLUICE_REQUIRE_TOOLS=1 $(GO) test -count=1 ./broker/vend/... ./test/env

test-cluster-full: build ## every event at every step of a load into a real Fluss cluster (an hour; needs Java and Maven)
	SLUICE_CLUSTER_FULL=1 SLUICE_REQUIRE_TOOLS=1 SLUICE_BIN=$(CURDIR)/$(BIN) $(GO) test -count=1 -timeout 3h -v ./test/cluster ./broker/target/fluss

bench: ## the benchmarks, each with its limit in the same run
	$(GO) run ./test/bench

ROWS ?= 1000000
REPLICAS ?= 1
bench-fluss: build ## load ROWS rows into a real Fluss by its Java client and by Sluice (REPLICAS=1 or 3; needs Java and Maven)
	$(GO) run ./test/benchfluss -bin $(BIN) -rows $(ROWS) -replicas $(REPLICAS)

FUZZTIME ?= 20s
fuzz: ## fuzz every target for FUZZTIME
	@set -e; for pkg in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "== $$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$pkg; done; done

lint: ## gofmt, go vet, staticcheck and the default policy's own checks
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "gofmt:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./...
	$(STATICCHECK) ./...
	$(GO) run ./cmd/sluice policy check policy/rego
	$(GO) run ./cmd/sluice policy fmt policy/rego --diff

clean: ## remove what the other targets made
	rm -rf $(BIN) demo-data
