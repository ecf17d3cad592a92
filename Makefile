# Targets a user needs: setup, quickstart, test, test-full, lint, mutants, bench. Each sets up .venv first if it is
# missing.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
# Where torch's CPU wheels come from, if the default package index has none: make setup TORCH_INDEX=URL
TORCH_INDEX ?=
INSTALLED := $(VENV)/.installed

.PHONY: setup quickstart test test-full lint mutants bench clean

setup: $(INSTALLED)

$(INSTALLED): requirements/cpu.txt requirements/dev.txt setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	  { echo "error: $(PYTHON) is not Python 3.11; pass make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --no-deps --progress-bar on $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	  -r requirements/cpu.txt -r requirements/dev.txt
	$(BIN)/pip install --no-deps --no-build-isolation -e .
	$(BIN)/python requirements/check.py
	touch $@

quickstart: $(INSTALLED)
	PATH="$(abspath $(BIN)):$$PATH" bash examples/quickstart.sh

test: $(INSTALLED) lint
	$(BIN)/python -m pytest -m "not full"

test-full: $(INSTALLED) lint
	$(BIN)/python -m pytest

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

mutants: $(INSTALLED)
	$(BIN)/python -m benchmarks.mutants

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.replay_cost

clean:
	rm -rf $(VENV) build dist mutants *.egg-info
