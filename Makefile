# `make` lists the targets: what stands behind ## in their lines. Everything is in .venv; remove that folder to start over.
SUITABLE = import sys; sys.exit(sys.version_info < (3, 11))
PYTHON  ?= $(shell for each in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$each -c '$(SUITABLE)' 2>/dev/null && echo $$each && break; done)
VENV    ?= .venv
BIN      = $(VENV)/bin
# A new package at the top has to be made known to an editable installation, like a new dependency.
CAUSES   = pyproject.toml setup.py constraints.txt $(wildcard */__init__.py)
# What one process of a run has compiled the others take over, above all the tests, which pytest rewrites for seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run check test nightly test-all servers lint types compiled fmt bench docs screenshots dist release chaos soak explore image-test matrix

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 12

run: $(VENV)/.installed ## the service, in the folder var/
	@exec $(BIN)/bucketwire up

# What takes longest, and what needs a server that pip does not bring, is left to `make test`. One process: each of several
# would collect all tests once more.
check: $(VENV)/.developing ## ruff, mypy, and the tests that need no server: before each commit
	@$(MAKE) --no-print-directory lint types
	TEST_SERVERS=none $(BIN)/pytest -q --tier 2 -m "not slow and not heavy and not sender" --hypothesis-profile check \
		tests/unit tests/integration/outbox tests/integration/api tests/integration/cli

# A lost worker is not replaced, since its tests would wait for ever. make starts pytest itself, without a shell, so that
# pytest notices when make is interrupted (tests/support/interruption.py).
PARALLEL = -n 4 --dist loadscope --max-worker-restart 0 --reruns 1

test: ## servers, ruff, mypy, and the tests of every promise: before a merge
	@$(MAKE) --no-print-directory --jobs 2 servers lint types compiled
	$(BIN)/pytest $(PARALLEL) --tier 2

nightly: ## every test with every parameter, but those that take hours
	@$(MAKE) --no-print-directory --jobs 2 servers lint types compiled
	$(BIN)/pytest $(PARALLEL) --tier 3 --hypothesis-profile all

# And then the stores that take long to build (Garage, SeaweedFS, Versity, Ceph RGW: Debian, as root), and what takes hours.
test-all: ## nightly, real frontends, the newest servers, heavy tests: before a release
	@$(MAKE) --no-print-directory nightly
	$(BIN)/python -m tests.provision ceph garage seaweedfs versity
	$(BIN)/pytest -m sender tests/acceptance
	@$(MAKE) --no-print-directory matrix
	$(BIN)/pytest -m heavy

# Needs the standard library only, so that it goes on beside the installation.
servers: | $(BIN)/pip ## install the real servers into ~/.cache/bucketwire
	@$(BIN)/python -m tests.provision

lint: $(VENV)/.developing ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.developing ## mypy
	$(BIN)/mypy

# Each of pytest's processes would compile every test at the same time as the others, and find out for Hypothesis which
# characters UTF-8 has.
compiled: $(VENV)/.developing ## the bytecode of the tests
	@$(BIN)/python -m tests.support.bytecode || $(BIN)/pytest --collect-only -qq >/dev/null || true
	@ls .hypothesis/unicode_data/*/codec-* >/dev/null 2>&1 \
		|| $(BIN)/python -c "from hypothesis.strategies import text; text().validate()"

fmt: $(VENV)/.developing ## let ruff correct and format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(VENV)/.developing ## measure: docs/explanation/performance.md
	$(BIN)/python -m bench

# The documentation as a site in build/docs; a broken link fails it. Sphinx has an environment of its own.
docs: build/docs-venv/.installed ## the documentation as a site in build/docs
	build/docs-venv/bin/sphinx-build -W --keep-going -q -b html -d build/doctrees -c docs . build/docs
	@echo "open build/docs/docs/index.html"

build/docs-venv/.installed: pyproject.toml | $(BIN)/pip
	@$(BIN)/python -m venv build/docs-venv
	@build/docs-venv/bin/pip install --quiet --disable-pip-version-check $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

# The pictures of the console in docs/how-to/images, and of every page in build/screenshots, as its tests make them.
screenshots: $(VENV)/.developing servers ## the pictures of the console
	SCREENSHOTS=docs $(BIN)/pytest --hypothesis-profile all tests/acceptance/test_console_screens.py tests/acceptance/test_console.py

# The sdist, and the wheel made from it, in dist/: docs/how-to/release.md
dist: $(VENV)/.developing ## sdist and wheel in dist/
	rm -rf dist
	$(BIN)/python -m build

# Everything that a release publishes, in dist/VERSION, from a clean tag: make release VERSION=0.3.0
# RELEASE="--repository https://… --images docker"; --dry-run tries it on any commit. docs/how-to/release.md
release: $(VENV)/.developing ## everything that a release publishes, in dist/VERSION
	$(BIN)/python deploy/release.py $(VERSION) $(RELEASE)

# Kill and stop processes while events flow: make chaos CHAOS=--all (three set-ups, 300,000 events each), or a short
# one: make chaos CHAOS="--events 20000 --rounds 11"
chaos: $(VENV)/.developing servers ## kill and stop processes while events flow
	$(BIN)/python -m tests.chaos $(CHAOS)

# An hour at 500 events a second, to see whether anything grows. A shorter one: make soak SOAK="--minutes 10 --rate 50"
soak: $(VENV)/.developing servers ## an hour at a steady rate: does anything grow?
	$(BIN)/python -m tests.soak $(SOAK)

# The long form of tests/integration/outbox/test_interleavings.py: two operations of the outbox in every order of their statements.
explore: $(VENV)/.developing servers ## two operations of the outbox in every order of their statements
	$(BIN)/pytest -m heavy tests/integration/outbox/test_interleavings.py

# Build both images and run them hardened, then run the compose file with each broker; without a Docker engine by Debian's
# buildah and podman (as root).
image-test: $(VENV)/.developing ## build the images and the compose file, and run them
	$(BIN)/python -m tests.images

# What servers are asked for most, against the newest of each (on Debian, as root), and the unit tests and the service on
# the other Pythons. A part: make matrix MATRIX=servers, or MATRIX=3.14
matrix: $(VENV)/.developing servers ## the newest servers and the other Pythons
	$(BIN)/python -m tests.matrix $(MATRIX)

# uv fetches side by side what pip fetches one by one: seconds instead of half a minute. It reads nothing of pip's
# configuration: where that names an index or a way to it, where there is no uv for the machine, or where uv cannot fetch
# what builds packages, pip installs all.
PIP     = $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
UV      = $(BIN)/uv pip install --quiet --system-certs --python $(BIN)/python
INSTALL = $(if $(shell test -x $(BIN)/uv && echo it is),$(UV),$(PIP))
BUILDS  = --no-deps --require-hashes --requirement $(VENV)/setuptools.lock
$(VENV)/.installer: requirements.lock deploy/uv.lock | $(BIN)/pip
	@echo "Installing into $(VENV) ..."
	@sed -n '/^setuptools==/,/[^\\]$$/p' requirements.lock > $(VENV)/setuptools.lock
	@{ ! $(BIN)/pip config list | grep -qE 'index-url|no-index|proxy|trusted-host|client-cert' && \
		$(PIP) --no-deps --only-binary :all: --require-hashes --requirement deploy/uv.lock && $(UV) $(BUILDS); } 2>/dev/null \
		|| { rm -f $(BIN)/uv; $(PIP) $(BUILDS); }
	@touch $@

# As the image: by version and hash, and what builds packages first. Nothing is left to resolve, so nothing is looked for.
# The build leaves a description of the package with another version than the installed one, which goes: a process that
# is started in this folder may find it first.
$(VENV)/.installed: $(CAUSES) requirements.lock | $(VENV)/.installer
	@$(INSTALL) --no-deps --no-build-isolation --require-hashes --requirement requirements.lock
	@$(INSTALL) --no-deps --no-build-isolation --editable .
	@rm -rf bucketwire.egg-info
	@touch $@

$(VENV)/.developing: $(CAUSES) | $(VENV)/.installer
	@$(INSTALL) --constraint constraints.txt --editable '.[dev,otel,spark]'
	@rm -rf bucketwire.egg-info
	@touch $@ $(VENV)/.installed

$(BIN)/pip:
	@if ! $(or $(PYTHON),false) -c '$(SUITABLE)' 2>/dev/null; then \
		echo "Bucketwire needs Python 3.11 or newer; $(if $(PYTHON),$(PYTHON) is older,none was found)." >&2; \
		echo "Install it, or name one: make run PYTHON=/path/to/python3.11" >&2; \
		exit 1; \
	fi
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
