# What a contributor does. Needs Python 3.11 or newer and make; `make test` also Java 17 and Maven.
# Each environment is installed once, until its lock file or pyproject.toml changes.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.installed-runtime
DEV := $(VENV)/.installed-dev
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Options for a target's program: make demo ARGS="--seed 7", make test ARGS="tests/unit -x".
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench bench-quick chaos guards lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(RUNTIME) ## See the whole path work, with faults and crashes, in about a minute
	@$(BIN)/relay demo $(ARGS)

# Most tests wait for servers and processes: two at a time take little more than half as long. WORKERS=0: one.
WORKERS ?= 2
test: $(DEV) ## Run all tests against a real Postgres and a real Kafka
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(ARGS)

lint: $(DEV) ## Check style, types and the rules of who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(DEV) ## Put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV) ## Measure drain rate and latency on a real Kafka, beside pg_recvlogical
	@$(BIN)/python -m bench $(ARGS)

bench-quick: $(DEV) ## The same in about a minute: a first figure
	@$(BIN)/python -m bench --quick $(ARGS)

# How long `make chaos` breaks things; CHAOS_SEED=N repeats the decisions of a run.
MINUTES ?= 5
chaos: $(DEV) ## Break the whole system at random for MINUTES, then print every invariant with its figure
	@CHAOS_MINUTES=$(MINUTES) $(BIN)/python -m pytest tests/acceptance/test_chaos.py $(ARGS)

guards: $(DEV) ## Remove each guard in turn and see a test fail
	@$(BIN)/python tests/guards.py $(ARGS)

# Everything that gets installed is in a lock with its hash, the build's own needs included.
LOCK := CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	--build-deps-for wheel --build-deps-for editable

lock: $(DEV) ## Renew requirements.lock and requirements-dev.lock from pyproject.toml
	$(LOCK) --extra demo --output-file requirements.lock pyproject.toml
	$(LOCK) --extra demo --extra dev --constraint requirements.lock --output-file requirements-dev.lock pyproject.toml

clean: ## Remove what these targets made: the environment, caches, builds
	rm -rf $(VENV) .venv-ci .cache .demo build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  found="$$($(PYTHON) --version 2>/dev/null)"; \
	  echo "This needs Python 3.11 or newer, and $(PYTHON) is $${found:-missing}: run make again with PYTHON=/path/to/one." >&2; \
	  exit 2; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 2; }

$(RUNTIME): requirements.lock pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV) …"
	@$(PIP) install --require-hashes --requirement requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV): requirements-dev.lock pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV) …"
	@$(PIP) install --require-hashes --requirement requirements-dev.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@ $(RUNTIME)
