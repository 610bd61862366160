# Everything runs in .venv, which is made when it is missing and only then.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
TORCH := .venv/.torch

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast lint docs bench lab notebooks clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 20

# Not again when pyproject.toml changes: `make clean` does that.
$(READY):
	@$(PYTHON) -c 'import sys; sys.exit("parsgd needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@echo 'installing parsgd and what it needs into .venv: about a minute'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[test,lint]'
	@touch $@

demo: $(READY)  ## a real sweep on embedded data: table, figures and page, in about two minutes
	$(BIN)/parsgd train -m +experiment=demo

test: $(READY)  ## all tests, on two processes
	$(BIN)/pytest -n 2

test-fast: $(READY)  ## all but the slow tests, in minutes
	$(BIN)/pytest -n 2 -m 'not slow'

lint: $(READY)  ## formatting, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

docs: $(READY)  ## check the documents: their commands, links, examples and figures
	$(BIN)/pytest -n 2 tests/test_docs.py

bench: $(READY)  ## fit against hand-written loops, medians of interleaved windows
	$(BIN)/python -m benchmarks --full --output benchmarks.json
	$(BIN)/python -m benchmarks.summary benchmarks.json

$(TORCH): $(READY)
	@echo 'installing PyTorch, to compare with, into .venv'
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[torch]'
	@touch $@

lab: $(TORCH)  ## step time and time to accuracy over slow links (root; hours), into docs/lab.md
	$(BIN)/python -m benchmarks.lab
	$(BIN)/python -m benchmarks.lab --publish

notebooks: $(READY)  ## run the notebooks top to bottom and keep their output
	$(BIN)/jupyter execute --inplace notebooks/*.ipynb

clean:  ## remove what was built; results stay
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
