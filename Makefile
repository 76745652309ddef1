# `make` lists the targets. Each sets up what it needs; repeating it is quick.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
UNFINISHED := $(VENV)/.unfinished
SOURCES := src tests examples scripts

# Tests that read real data run where there is some.
SLICE := not slow$(if $(FLEXFORMER_DATA),, and not data)
FULL := $(if $(FLEXFORMER_DATA),,not data)

# Every test computes on one thread, so two processes use two cores; a file's tests stay together for its fixtures.
JOBS ?= 2
PARALLEL := --numprocesses $(JOBS) --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help setup run test test-full lint format wheel clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv and install into it

# An installation that was cut off cannot be trusted, so it is begun anew; one that failed by itself has cleaned
# up after itself and is gone on with.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 10) else "Python %d.%d is too old; use make PYTHON=python3.11 or another of at least 3.10" % sys.version_info[:2])'
	@if [ -e $(UNFINISHED) ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		echo "creating $(VENV)"; $(PYTHON) -m venv --clear $(VENV); fi
	@touch $(UNFINISHED)
	@echo "installing into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' \
		|| { rm -f $(UNFINISHED); exit 1; }
	@mv $(UNFINISHED) $(READY)

run: $(READY) ## train four small models, compare them and write a report, in five minutes
	$(BIN)/flexformer demo

test: lint wheel ## lint, wheel and tests, without the slow ones (what CI runs)
	$(BIN)/python -m pytest $(PARALLEL) -m "$(SLICE)"

test-full: lint wheel ## lint, wheel and all tests
	$(BIN)/python -m pytest $(PARALLEL) -m "$(FULL)"

lint: $(READY) ## ruff, ruff format and mypy, changing nothing
	$(BIN)/python -m ruff check $(SOURCES)
	$(BIN)/python -m ruff format --check $(SOURCES)
	$(BIN)/python -m mypy

format: $(READY) ## let ruff mend what it can
	$(BIN)/python -m ruff check --fix $(SOURCES)
	$(BIN)/python -m ruff format $(SOURCES)

wheel: $(READY) ## build the wheel, install it elsewhere and try it there
	$(BIN)/python scripts/check_wheel.py

clean: ## remove .venv, caches and build products
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
