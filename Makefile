# Cordon. The one prerequisite is Go 1.26; `make setup` checks it and installs
# the rest from Debian's packages.
#
#   make quickstart   as root: install, build, run one real job, and look at it
#   make test         as root: every test; what CI runs
#   make test-vm      as root: those of a host, on Debian 12 in a virtual machine
#   make check        format, vet, lint, generated code, vulnerabilities
#   make bench        beside runc and bwrap, in one run
#   make install      PREFIX=/usr/local DESTDIR=

.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

# As root by way of sudo, PATH may lack the place where Go usually is.
GO ?= $(shell command -v go || { test -x /usr/local/go/bin/go && echo /usr/local/go/bin/go; } || echo go)
export GO
GO_DIR := $(patsubst %/,%,$(dir $(shell command -v $(GO))))
ifneq ($(GO_DIR),)
export PATH := $(GO_DIR):$(PATH)
endif

# libcontainer has its seccomp part behind this tag; without it no jail starts.
ifeq ($(findstring -tags=seccomp,$(GOFLAGS)),)
export GOFLAGS := $(strip $(GOFLAGS) -tags=seccomp)
endif

PREFIX     ?= /usr/local
SYSCONFDIR ?= /etc
UNITDIR    ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
TMPFILESDIR ?= $(PREFIX)/lib/tmpfiles.d

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
BUILD    = $(GO) build -trimpath -buildvcs=false -ldflags '-X main.version=$(VERSION)'

# The tools are modules of their own, so that none of their dependencies is in
# the daemon's; tools/README.md says why they are four.
TOOL  = $(GO) tool -modfile=$(CURDIR)/tools/go.mod
GOFUMPT_EXTRA = group_params,clothe_returns
LINT  = $(GO) tool -modfile=$(CURDIR)/tools/lint/go.mod golangci-lint

# Packages whose tests act on the host: jails, mounts, cgroups, BPF. They run
# one after the other. All others run under the race detector.
ROOT_TESTS = ./jail/linux ./ebpf ./artifacts/... ./tests/lease ./tests/conformance
# Those of them that need no Go where they run.
VM_TESTS = ./jail/linux ./ebpf ./artifacts/...
# Packages that must build, and so be testable, on any system.
PURE = ./netpolicy/... ./jail ./supervisor/... ./internal/fault ./internal/strictyaml

.PHONY: help setup setup-bench setup-vm setup-dev build quickstart test unit-test \
	root-test test-vm bench generate install clean \
	check check-format check-vet check-arch check-static check-lint \
	check-portable check-generated check-tidy check-vuln

help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile

# --- Getting ready ---------------------------------------------------------

setup:
	@tools/setup.sh go
	@tools/setup.sh run

setup-bench: setup
	@tools/setup.sh bench

setup-vm: setup
	@tools/setup.sh vm

setup-dev: setup
	@tools/setup.sh dev

# cordond needs cgo (libcontainer's entry into namespaces, libseccomp). The
# other two are static: one runs inside jails, the other anywhere.
build:
	@tools/setup.sh go
	CGO_ENABLED=1 $(BUILD) -o bin/cordond ./cmd/cordond
	CGO_ENABLED=0 $(BUILD) -o bin/ ./cmd/cordon ./cmd/cordon-init

# Each step is a make of its own, so that -j cannot mix their order.
quickstart:
	@$(MAKE) --no-print-directory setup
	@$(MAKE) --no-print-directory build
	@deploy/quickstart.sh bin

# --- Tests -----------------------------------------------------------------

test:
	@$(MAKE) --no-print-directory setup
	@$(MAKE) --no-print-directory build
	@$(MAKE) --no-print-directory unit-test
	@$(MAKE) --no-print-directory root-test

# tests/ran fails too if a test that is declared did not pass, if one was
# skipped without leave, or if something of ours is left on the machine.
unit-test:
	@root=$$($(GO) list $(ROOT_TESTS)) && all=$$($(GO) list ./...) && \
	$(GO) run ./tests/ran -race -timeout 5m -skips tests/ran/skips.txt \
		$$(printf '%s\n' "$$all" | grep -vxF "$$root")

root-test:
	@test "$$(id -u)" = 0 || { echo 'make root-test: run it as root' >&2; exit 1; }
	$(GO) run ./tests/ran -each -p 1 -timeout 10m -skips tests/ran/skips.txt $(ROOT_TESTS)

# The same packages, and the quickstart, on Debian 12 as it comes: its kernel,
# systemd and cgroup v2 alone, in a virtual machine.
test-vm:
	@$(MAKE) --no-print-directory setup setup-vm
	@$(MAKE) --no-print-directory build
	$(GO) run ./tests/vm -skips tests/vm/skips.txt $(VM_TESTS)

bench: setup-bench build
	$(GO) test -count=1 -run '^$$' -bench . -benchtime 40x -timeout 20m ./tests/bench

# --- Generated code --------------------------------------------------------

generate: setup-dev
	tools/generate.sh

# --- Checks, by cost -------------------------------------------------------

check: check-format check-vet check-arch check-portable check-static \
	check-tidy check-generated check-lint check-vuln

check-format:
	@out=$$($(TOOL) gofumpt -extra=$(GOFUMPT_EXTRA) -l $$(tools/sources.sh)) && \
	if [ -n "$$out" ]; then echo "not as gofumpt -extra=$(GOFUMPT_EXTRA) writes it:" $$out >&2; exit 1; fi

check-vet:
	$(GO) vet ./...

check-arch:
	$(GO) test -count=1 ./tests/arch

check-portable:
	CGO_ENABLED=0 GOOS=darwin $(GO) vet $(PURE)

check-static:
	$(TOOL) staticcheck ./...

# LINT_FROM=REV looks at what changed since REV only.
check-lint:
	$(LINT) run $(if $(LINT_FROM),--new-from-rev=$(LINT_FROM)) ./...

check-tidy:
	$(GO) mod tidy -diff
	$(GO) mod verify

check-generated: setup-dev
	tools/generate.sh -check

check-vuln:
	tools/vuln.sh

# --- Installation ----------------------------------------------------------

# The host policy is the operator's: one that is there is left alone.
install:
	install -D -m 0755 bin/cordon $(DESTDIR)$(PREFIX)/bin/cordon
	install -D -m 0755 bin/cordond $(DESTDIR)$(PREFIX)/sbin/cordond
	install -D -m 0755 bin/cordon-init $(DESTDIR)$(PREFIX)/libexec/cordon/cordon-init
	install -d -m 0755 $(DESTDIR)$(UNITDIR)
	sed -e 's|/usr/local|$(PREFIX)|g' -e 's|/etc/cordon|$(SYSCONFDIR)/cordon|g' \
		deploy/cordond.service >$(DESTDIR)$(UNITDIR)/cordond.service
	chmod 0644 $(DESTDIR)$(UNITDIR)/cordond.service
	install -D -m 0644 deploy/sysusers.conf $(DESTDIR)$(SYSUSERSDIR)/cordon.conf
	install -D -m 0644 deploy/tmpfiles.conf $(DESTDIR)$(TMPFILESDIR)/cordon.conf
	test -e $(DESTDIR)$(SYSCONFDIR)/cordon/policy.yaml || \
		install -D -m 0644 deploy/policy.yaml $(DESTDIR)$(SYSCONFDIR)/cordon/policy.yaml

clean:
	rm -rf bin
