# One entry point for people and CI. Every target makes what it needs, a virtual
# environment included, from a bare clone with Python 3.11, git and make.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
OUT    := out
TOOLS  := $(OUT)/tools

# ONNX Runtime sends events to its maker unless this is set; tests are nobody's use of it.
export ORT_DISABLE_TELEMETRY := 1

# Tests start some 250 processes of Python. Without byte code, each of them compiles memplan anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo docs pictures test test-environment test-slow test-cuda measure-cuda test-suite test-commands test-oldest test-pythons test-integrations test-install lock audit dist hostile faults field fuzz mutations random-mutants lint types bench zoo same-results compare-runtimes golden samples clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# What is installed is pinned by hashes in .ci/locks; LOCKED=no takes the newest in range.
$(READY): pyproject.toml .ci/install.py .ci/locks/dev.txt
	$(PYTHON) -c 'import sys; sys.exit("memplan needs Python 3.11 or newer: make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python .ci/install.py dev
	touch $@

install: $(READY) ## Make the virtual environment and install memplan into it

demo: $(READY) ## Plan the sample models and a real network, run both versions, show the reports
	@BIN=$(BIN) OUT=$(OUT) sh sample_models/demo.sh

$(VENV)/.docs: $(READY) .ci/locks/docs.txt
	$(BIN)/python .ci/install.py docs
	touch $@

docs: $(VENV)/.docs ## Build the documentation as a site that needs no network: out/site/index.html
	$(BIN)/python -m sphinx -b html -W --keep-going --quiet -d $(OUT)/doctrees docs $(OUT)/site

pictures: docs ## Draw the charts and take the screenshots of the documentation again (needs Chromium)
	$(BIN)/python -m tests.benchmarks.charts
	PYTHONPATH=.:tests/e2e $(BIN)/python tests/e2e/screenshots.py ../shared/models

test: $(READY) ## Run the tests, the linter and the type checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p $(OUT)
	$(BIN)/mypy > $(OUT)/types.log 2>&1 & types=$$!; \
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow and not bench and not cuda'; tests=$$?; \
	wait $$types; types=$$?; cat $(OUT)/types.log; exit $$((tests || types))

# Below /dev/null nobody can write, root included.
test-environment: $(READY) ## Run the tests in an unusual environment: they may not depend on the caller's
	NO_COLOR=1 COLUMNS=40 TERM=dumb LC_ALL=C TZ=Pacific/Chatham HOME=/dev/null \
	    $(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow and not bench and not cuda' $(WORDS)

test-slow: $(READY) ## Run the long tests
	$(BIN)/python -m pytest -n 2 -m 'slow and not cuda'

test-cuda: $(READY) ## Run the tests that need a GPU; they skip with the reason where there is none
	$(BIN)/python -m pytest -m cuda

measure-cuda: $(READY) ## Measure what docs/cuda.md says from sources, on a GPU in at most 30 minutes; without one, rehearse it (MINUTES=28)
	PYTHONPATH=.:tests $(BIN)/python -m tests.benchmarks.cuda

lint: $(READY) ## Check style, imports and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell memplan_cli tests docs README.md CHANGELOG.md CONTRIBUTING.md

types: $(READY) ## Check types
	$(BIN)/mypy

BENCHES := packing ordering recompute resident scale runtime_settings prediction

bench: $(READY) ## Measure; writes the tables of docs/measurements (hours; BENCHES=packing for one)
	for bench in $(BENCHES); do PYTHONPATH=tests:tests/e2e $(BIN)/python -m tests.benchmarks.$$bench || exit 1; done

zoo: $(READY) ## Optimize every model of ../shared/models and the onnx package at every level
	$(BIN)/python -m tests.benchmarks.zoo

same-results: $(READY) ## Give commit OLD and the working tree the same commands, list what differs
	$(BIN)/python -m tests.benchmarks.same_results --old $(OLD)

test-suite: $(READY) ## Plan, rewrite and run every model of the onnx package's backend suite
	$(BIN)/python -m tests.benchmarks.suite

test-commands: $(READY) ## Give every command every model of the backend suite
	$(BIN)/python -m tests.benchmarks.commands -o $(OUT)/commands.jsonl

OLDEST := $(OUT)/oldest

test-oldest: ## Run the tests with the oldest versions that pyproject.toml allows, in their own environment
	mkdir -p $(OLDEST)
	$(PYTHON) .ci/oldest.py > $(OLDEST)/constraints.txt
	test -x $(OLDEST)/venv/bin/python || $(PYTHON) -m venv $(OLDEST)/venv
	$(OLDEST)/venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(OLDEST)/constraints.txt --editable '.[dev]'
	$(OLDEST)/venv/bin/python -m pytest -n 2 --dist worksteal -m 'not slow and not bench and not cuda'

test-pythons: ## Run the tests with each supported Python found here, each in its own environment (WORDS="tests/core" for some)
	$(PYTHON) .ci/pythons.py $(OUT)/pythons $(WORDS)

INTEGRATIONS := $(OUT)/integrations
TORCH ?= torch

test-integrations: ## Run the tests with the real Olive, optimum, Netron and pre-commit, in their own environment (TORCH="torch==2.13.0+cpu" for a small one)
	test -x $(INTEGRATIONS)/bin/python || $(PYTHON) -m venv $(INTEGRATIONS)
	$(INTEGRATIONS)/bin/python -m pip install --quiet --disable-pip-version-check '$(TORCH)' --editable '.[dev,olive,optimum]' ./integrations/optimum netron pre-commit
	$(INTEGRATIONS)/bin/python -m pytest -ra tests/integrations

$(TOOLS)/.ready: .ci/install.py .ci/locks/tools.txt
	test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python .ci/install.py tools
	touch $@

lock: $(TOOLS)/.ready ## Pin what CI installs anew, with hashes: .ci/locks (review the diff)
	$(TOOLS)/bin/python .ci/lock.py $(TOOLS)/bin/uv

audit: ## Look for known faults of what is locked; exit 3 where no service of advisories answers
	@$(MAKE) --no-print-directory $(TOOLS)/.ready \
	    || { echo 'audit: not done: its tools could not be installed' >&2; exit 3; }
	@$(TOOLS)/bin/python .ci/audit.py $(TOOLS)/bin/pip-audit

dist: $(TOOLS)/.ready ## Build the release in dist/, install each file fresh, run the demo there, check metadata and licences
	rm -rf dist $(OUT)/release
	$(TOOLS)/bin/python -m build --no-isolation --outdir dist .
	$(TOOLS)/bin/python .ci/sbom.py $(OUT)/release dist
	$(TOOLS)/bin/python .ci/release.py $(OUT)/release/tried dist

test-install: $(TOOLS)/.ready ## Install the wheel by uvx, by pipx, beside another ONNX Runtime and as the Containerfile does (needs the network)
	rm -rf $(OUT)/wheel
	$(TOOLS)/bin/python -m build --no-isolation --wheel --outdir $(OUT)/wheel .
	$(TOOLS)/bin/python .ci/try_install.py $(OUT)/install $(OUT)/wheel

hostile: $(READY) ## Give memplan files that nobody should have to read
	$(BIN)/python -m tests.benchmarks.hostile

faults: $(READY) ## Full disks, kills, crashing runtimes: see that nothing is lost or left
	$(BIN)/python -m tests.benchmarks.faults
	$(BIN)/python -m tests.benchmarks.kills

field: $(READY) ## Give every command the models inside packages that people install (needs the network once)
	OUT=$(OUT) $(BIN)/python -m tests.benchmarks.field

fuzz: $(READY) ## Fuzz every reader of untrusted bytes for SECONDS (60) each
	$(BIN)/python .ci/install.py fuzz
	$(BIN)/python -m tests.fuzz.run --seconds $(or $(SECONDS),60) --write-table

mutations: $(READY) ## Remove each rule in turn and see that a test fails
	$(BIN)/python -m tests.benchmarks.mutations

random-mutants: $(READY) ## Edit the code at random and see that a test fails (MUTANTS="--seed 2 --count 500")
	$(BIN)/python -m pip install --quiet --disable-pip-version-check coverage
	PYTHONPATH=tests $(BIN)/python -m tests.benchmarks.random_mutants $(MUTANTS)

compare-runtimes: $(READY) ## Measure networks in ONNX Runtime, memplan, MNN, OpenVINO, tract, LiteRT and ncnn (needs the network once; hours)
	PYTHONPATH=.:tests $(BIN)/python -m tests.benchmarks.runtimes $(NETWORKS)

golden: $(READY) ## Write the golden reports again; review them as a diff
	$(BIN)/python -m pytest tests/golden tests/reporting --update-golden

samples: $(READY) ## Write the sample models again
	$(BIN)/python sample_models/build.py

clean: ## Remove the virtual environment and all caches
	rm -rf $(VENV) $(OUT) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
