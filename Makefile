# Targets a user needs: setup, quickstart, real, test, test-full, lint, docs, mutants, bench, lock. Each sets up .venv first if it
# is missing.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV ?= .venv$(if $(VERL),-verl-$(VERL))
BIN := $(VENV)/bin
# Where torch's CPU wheels come from, if the default package index has none: make setup TORCH_INDEX=URL
TORCH_INDEX ?=
# Where no CPU wheels can be had: make setup TORCH_CUDA=1 takes torch's CUDA build with its libraries (3 GB more).
TORCH_CUDA ?=
# Another release of verl than the pinned one, in a .venv-verl-0.9.2, to see what breaks: make test VERL=0.9.2
VERL ?=
INSTALLED := $(VENV)/.installed
# Processes for the unit tests. Each takes about 2 GB.
WORKERS ?= 2

.PHONY: setup quickstart real test test-full lint docs mutants bench lock clean

setup: $(INSTALLED)

$(INSTALLED): requirements/cpu.txt requirements/dev.txt setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' || \
	  { echo "error: $(PYTHON) is not Python 3.11 or 3.12; pass make PYTHON=/path/to/python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --no-deps --progress-bar on $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	  -r requirements/cpu.txt -r requirements/dev.txt $(if $(TORCH_CUDA),-r requirements/torch_cuda.txt)
	$(if $(VERL),$(BIN)/pip install --no-deps verl==$(VERL))
	$(BIN)/pip install --no-deps --no-build-isolation -e .
	$(BIN)/python requirements/check.py
	touch $@

quickstart: $(INSTALLED)
	PATH="$(abspath $(BIN)):$$PATH" bash examples/quickstart.sh

real: $(INSTALLED)
	PATH="$(abspath $(BIN)):$$PATH" bash examples/run_real.sh

# The end-to-end tests use all cores, so they run one after another.
test: $(INSTALLED) lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not e2e and not full"
	$(BIN)/python -m pytest tests/e2e -m "e2e and not full"

test-full: $(INSTALLED) lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not e2e and not full"
	$(BIN)/python -m pytest -m "e2e or full"

# The documents as a site in build/docs; a link that leads nowhere is an error.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(INSTALLED) docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

mutants: $(INSTALLED)
	$(BIN)/python -m benchmarks.mutants

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.replay_cost

# requirements/gpu.txt, resolved for CPython 3.11; the second resolution says whether 3.12 takes the same pins.
# Pins that still fit are kept; make lock LOCK_OPTIONS=--upgrade takes the newest.
LOCK_OPTIONS ?=
LOCK = $(BIN)/uv pip compile --quiet $(LOCK_OPTIONS) setup.py --extra gpu --constraints requirements/gpu_bounds.txt \
  --python-platform x86_64-manylinux_2_31 --no-annotate \
  --custom-compile-command "make lock (CPython 3.11 and 3.12, Linux x86-64; docs/gpu.md)"

lock: $(INSTALLED)
	$(LOCK) --python-version 3.11 --output-file requirements/gpu.txt
	cp requirements/gpu.txt $(VENV)/gpu-3.12.txt
	$(LOCK) --python-version 3.12 --output-file $(VENV)/gpu-3.12.txt
	diff requirements/gpu.txt $(VENV)/gpu-3.12.txt

clean:
	rm -rf $(VENV) build dist mutants *.egg-info
