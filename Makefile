# `make` prints the targets. A target that needs the virtual environment first runs `setup`, which does nothing when the
# requirements are unchanged. Set variables on the command line: make demo DATASET=ml-100k DATA_DIR=path/to/it

.DEFAULT_GOAL := help
.PHONY: help setup demo web-demo test lint format types imports check coverage mutants bench lock openapi docs clean distclean

BIN := .venv/bin
BENCH_OUT := bench/results/local

# --- make demo: options that are empty are not passed on ------------------------------------------------------------
DATASET ?=
DATA_DIR ?=
RECIPE ?=
ROUNDS ?=
DEMO_ARGS ?=
# --- make web-demo ---------------------------------------------------------------------------------------------------
WEB_ARGS ?=
# --- make test -------------------------------------------------------------------------------------------------------
PYTEST_ARGS ?=
# Two processes for each core, at most eight: many tests wait for servers, time limits and outages. The tests of one file
# run in one process.
# Every process imports every test file: pytest keeps what it made of them, even where Python is told to keep nothing.
PROCESSES := $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); n=$$(( 2 * cores )); \
	echo $$(( n < 8 ? n : 8 )))
PYTEST_JOBS ?= -n $(PROCESSES) --dist loadfile --no-loadscope-reorder
# --- make mutants -----------------------------------------------------------------------------------------------------
MUTANTS_ARGS ?=
# --- make bench ------------------------------------------------------------------------------------------------------
BENCH_ARGS ?=
# --- make lock -------------------------------------------------------------------------------------------------------
LOCK_ARGS ?=

help:
	@echo 'HushRec: federated recommender training in which the server learns only sums.'
	@echo
	@echo 'Start here (requires Python 3.11+ and make; the first run creates .venv):'
	@echo '  make demo       train a recommender with encrypted sums; offline, two to five minutes'
	@echo '                    DATASET=ml-100k DATA_DIR=dir   real data; also ml-1m'
	@echo '                    RECIPE=colr  ROUNDS=n          recipe, and number of rounds'
	@echo '                    DEMO_ARGS="..."                other options; see: hushrec demo --help'
	@echo '  make web-demo   a web page that takes part beside 20 simulated clients, at http://127.0.0.1:8080/'
	@echo '                    WEB_ARGS="--port 8081 --no-browser"   options; see: python -m examples.web.demo --help'
	@echo '  make test       run the whole test suite'
	@echo '                    PYTEST_ARGS="-x tests/protocols"   only some tests'
	@echo '                    PYTEST_JOBS=                       without parallel processes'
	@echo
	@echo 'While you work:'
	@echo '  make setup      create or update .venv   (PYTHON=python3.12 selects the interpreter)'
	@echo '  make format     fix and format the code with ruff'
	@echo '  make lint       check rules and format with ruff'
	@echo '  make types      check the types of the three packages with mypy (strict)'
	@echo '  make imports    check the import rules between and inside the packages'
	@echo '  make check      run lint, types, imports and test in this order'
	@echo '  make coverage   measure the line coverage of protocols/; sums, privacy and crypto must have 100 %'
	@echo '  make mutants    mutation testing of sums, privacy, crypto and rounds; takes hours, for a nightly run'
	@echo '                    MUTANTS_ARGS="--sample 60"   60 mutants a group; other options: scripts/mutants.py --help'
	@echo '  make openapi    write openapi/openapi.json from the service'
	@echo '  make docs       build the documentation site, site/index.html; fails on a broken link'
	@echo '  make bench      run every benchmark in its smallest size; results in $(BENCH_OUT)/index.html'
	@echo '                    DATA_DIR=dir   folder of data sets; without it, made-up data'
	@echo '                    BENCH_ARGS="..."   options; see: python -m bench.run_all --help'
	@echo '  make lock       update requirements.lock   (LOCK_ARGS=--upgrade: newest versions)'
	@echo '  make clean      remove caches, build output, demo output, site/ and local benchmark results'
	@echo '  make distclean  run clean, and remove .venv'

setup:
	@PYTHON='$(PYTHON)' sh scripts/setup.sh

demo: setup
	@$(BIN)/hushrec demo $(if $(DATASET),--dataset '$(DATASET)') $(if $(DATA_DIR),--data-dir '$(DATA_DIR)') \
		$(if $(RECIPE),--recipe '$(RECIPE)') $(if $(ROUNDS),--rounds '$(ROUNDS)') $(DEMO_ARGS)

web-demo: setup examples/web/hushrec/noble.js
	@$(BIN)/python -m examples.web.demo $(WEB_ARGS)

examples/web/hushrec/noble.js: scripts/noble.sh examples/web/hushrec/package-lock.json
	@scripts/noble.sh

test: setup
	@PYTHONDONTWRITEBYTECODE= $(BIN)/pytest $(PYTEST_JOBS) $(PYTEST_ARGS)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: setup
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: setup
	@$(BIN)/mypy

imports: setup
	@$(BIN)/lint-imports

check: lint types imports test

# The code that contributions' confidentiality depends on must be covered completely, by the tests of `protocols` alone.
coverage: setup
	@$(BIN)/pytest -q -n logical --maxprocesses 8 --hypothesis-seed=0 --cov=protocols --cov-report= tests/protocols tests/vectors
	@$(BIN)/coverage report --include='protocols/sums/*,protocols/privacy/*,protocols/crypto/*' --fail-under=100 --skip-covered
	@$(BIN)/coverage report --skip-covered --show-missing

# set -f: mutmut expands the patterns, not the shell.
mutants: setup
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -r pyproject.toml --extra mutants
	@set -f; $(BIN)/python scripts/mutants.py $(MUTANTS_ARGS)

bench: setup
	@$(BIN)/python -m bench.run_all --output $(BENCH_OUT) $(if $(DATA_DIR),--data-dir '$(DATA_DIR)') $(BENCH_ARGS)

lock:
	@PYTHON='$(PYTHON)' sh scripts/lock.sh $(LOCK_ARGS)

openapi: setup
	@mkdir -p openapi
	@$(BIN)/hushrec-server export-openapi > openapi/openapi.json.new
	@mv openapi/openapi.json.new openapi/openapi.json

docs: setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file scripts/mkdocs.yml
	@echo 'docs: site/index.html'

clean:
	rm -rf build dist *.egg-info .pytest_cache .hypothesis .schemathesis .mypy_cache .ruff_cache .import_linter_cache
	rm -rf hushrec-demo site $(BENCH_OUT) bench/results/index.html
	rm -rf .coverage htmlcov .mutants
	find . -path ./.venv -prune -o -path ./.git -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean
	rm -rf .venv .venv-lock examples/web/hushrec/noble.js
