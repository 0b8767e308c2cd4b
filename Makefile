# Everything a developer runs. Each target makes the environment when missing.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Named for the content of pyproject.toml: a checkout changes times, not this.
STAMP := $(VENV)/.installed-$(shell cksum < pyproject.toml | tr ' ' '-')

# A plain install, as users have it: its request path is compiled (docs/compiled.md).
COMPILED := .venv-compiled
COMPILED_STAMP := $(COMPILED)/.installed-$(shell find setup.py pyproject.toml \
  proxy adapters policies -type f -not -name '*.py[co]' | sort | xargs cat | \
  cksum | tr ' ' '-')
BUILT := build/lib build/lib.* build/temp.* build/bdist.*

# mypy and import-linter cannot follow the hook of an editable install. This tree
# of links shows them the folders under their import names.
TREE := build/lint
FLOORS := proxy adapters policies
SCHEMA := docs/warmroute.schema.json
REFERENCE := docs/configuration.md
CONFIGS := $(sort $(wildcard examples/*/config*.yaml examples/00_minimal/*.yaml))
PYTEST := $(BIN)/pytest
BENCH ?=
TESTED ?= tests/unit tests/conformance
ARGS ?=

.PHONY: help
help: ## Show this text
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-13s %s\n", $$1, $$2}' Makefile

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11; name another: make PYTHON=..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@rm -f $(VENV)/.installed-*
	@touch $@

.PHONY: install
install: $(STAMP) ## Make .venv with the package and all developer tools

# What an earlier build left in build/lib would be installed as well.
$(COMPILED_STAMP):
	test -x $(COMPILED)/bin/python || $(PYTHON) -m venv $(COMPILED)
	$(COMPILED)/bin/python -m pip install --quiet --upgrade pip
	rm -rf $(BUILT)
	$(COMPILED)/bin/python -m pip install --quiet '.[dev]'
	rm -rf $(BUILT)
	@rm -f $(COMPILED)/.installed-*
	@touch $@

.PHONY: compiled
compiled: $(COMPILED_STAMP) ## Install the compiled package in an environment of its own

.PHONY: run
run: $(STAMP) ## Run the demo on two embedded engines (ARGS="--once")
	$(BIN)/warmroute demo $(ARGS)

.PHONY: run-vllm
run-vllm: $(STAMP) ## Run the main example on two real vLLM engines (ARGS="--keep")
	$(BIN)/python examples/01_two_vllm/run.py $(ARGS)

.PHONY: test
test: $(STAMP) ## Run all tests, those on real engines included
	$(PYTEST) tests

.PHONY: test-fast
test-fast: $(STAMP) ## Run the tests that need no engine
	$(PYTEST) tests -m "not engines"

.PHONY: test-sglang
test-sglang: $(STAMP) ## Run the tests on a real SGLang for CPU, made when missing
	$(BIN)/python tests/engines/sglang/make_env.py
	SGLANG_TESTS=1 $(PYTEST) tests/engines/sglang $(ARGS)

.PHONY: test-compiled
test-compiled: $(COMPILED_STAMP) ## Run unit and conformance tests on the compiled install
	WARMROUTE_COMPILED=1 $(COMPILED)/bin/pytest $(TESTED)

.PHONY: check
check: lint types layers docs-check configs ## Check style, types, layers, docs, configs

.PHONY: lint
lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: tree
tree:
	@mkdir -p $(TREE)/warmroute
	@for floor in $(FLOORS); do \
	  ln -sfn ../../../$$floor $(TREE)/warmroute/$$floor; \
	done

.PHONY: types
types: $(STAMP) tree
	MYPYPATH=$(TREE) $(BIN)/mypy -p warmroute

.PHONY: layers
layers: $(STAMP) tree
	PYTHONPATH=$(TREE) $(BIN)/lint-imports

# A failed diff means: run `make docs` and commit what it wrote.
.PHONY: docs-check
docs-check: $(STAMP)
	$(BIN)/warmroute schema | diff -u $(SCHEMA) -
	$(BIN)/warmroute schema --markdown | diff -u $(REFERENCE) -

.PHONY: configs
configs: $(STAMP)
	$(BIN)/check-jsonschema --schemafile $(SCHEMA) $(CONFIGS)

.PHONY: docs
docs: $(STAMP) ## Write the generated parts of docs/ anew
	$(BIN)/warmroute schema > $(SCHEMA)
	$(BIN)/warmroute schema --markdown > $(REFERENCE)

.PHONY: format
format: $(STAMP) ## Format the code and sort its imports
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench
bench: $(STAMP) $(COMPILED_STAMP) ## Compare CPU cost with nginx and the Rust routers (BENCH=--quick)
	$(BIN)/python tests/bench/overhead/run.py $(BENCH)

.PHONY: clean
clean: ## Remove the environment and everything generated
	rm -rf $(VENV) $(COMPILED) build dist *.egg-info .coverage .hypothesis .import_linter_cache \
	  .mypy_cache .pytest_cache .ruff_cache
	find $(FLOORS) tests examples -name __pycache__ -type d -prune -exec rm -rf {} +
