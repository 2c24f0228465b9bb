.DEFAULT_GOAL := help
.PHONY: help setup browser demo figures test test-all faults lint format bench wheel clean

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One folder a demo, so that nothing is overwritten and evaluate.py finds what train.py made.
DEMO := runs/demo/$(shell date +%Y-%m-%d_%H-%M-%S)-$(shell echo $$PPID)
# The studies that draw figures, separated by commas, and where they go; an earlier set is moved aside, never deleted.
STUDIES := layer_norm
FIGURES := runs/figures
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

help:  ## List what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(READY)  ## Make the virtual environment in .venv and install everything

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "error: lipformer needs Python 3.11 to 3.13, $(PYTHON) is $$($(PYTHON) -V 2>&1): make PYTHON=python3.12 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

browser:  ## Install a Chromium for the tests of the report, where apt-get may (root on Debian)
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
	  echo "no browser could be installed: the tests that need one will be skipped"

demo: $(READY)  ## Train an invertible model for a few minutes, then print its test loss, certificate and three sentences
	$(BIN)/python train.py experiment=certified name=demo hydra.run.dir=$(DEMO)
	$(BIN)/python evaluate.py checkpoint=$(DEMO) split=test study=certify
	$(BIN)/python evaluate.py checkpoint=$(DEMO) generate.samples=3

figures: $(READY)  ## Run every study with a figure in its quick form; an overview of the claims is runs/figures/claims.html
	[ ! -e $(FIGURES) ] || mv $(FIGURES) $(FIGURES)-until-$(shell date +%Y-%m-%d_%H-%M-%S)
	$(BIN)/python evaluate.py -m study=$(STUDIES) study.scale=quick \
	  hydra.sweep.dir=$(FIGURES) 'hydra.sweep.subdir=$${hydra:runtime.choices.study}'

test: $(READY)  ## Run the tests
	$(PYTEST) -m "not slow"

test-all: $(READY)  ## Run the tests, the slow ones too
	$(PYTEST)

faults: $(READY)  ## Run the trials of docs/reliability.md, and count what survives
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m fault --count-faults=docs/data/reliability.csv

lint: $(READY)  ## Check style, types, and that imports point down
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	PYTHONPATH=. $(BIN)/lint-imports

format: $(READY)  ## Put the code into the project's style
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

bench: $(READY)  ## Measure the cost of a training step of each attention
	$(BIN)/python bench/attention_step.py
	$(BIN)/python bench/model_step.py

wheel: $(READY)  ## Build the wheel into dist/
	$(BIN)/python -m build --wheel

clean:  ## Remove the virtual environment, builds and caches (runs/ stays)
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .grimp_cache .import_linter_cache .hypothesis
