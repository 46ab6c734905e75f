# `make` alone prints what there is. Every target that needs the environment makes it first (`setup`, instant when
# nothing changed). Variables are given on the command line: make demo DATASET=ml-100k DATA_DIR=path/to/it

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format types imports check coverage bench lock openapi docs clean distclean

BIN := .venv/bin
BENCH_OUT := bench/results/local

# --- make demo: each is passed on only when given -------------------------------------------------------------------
DATASET ?=
DATA_DIR ?=
RECIPE ?=
ROUNDS ?=
DEMO_ARGS ?=
# --- make test -------------------------------------------------------------------------------------------------------
PYTEST_ARGS ?=
# Whole files side by side, one process a core and no more than eight: tests start servers of their own.
PYTEST_JOBS ?= -n logical --maxprocesses 8 --dist loadfile
# --- make bench ------------------------------------------------------------------------------------------------------
BENCH_ARGS ?=
# --- make lock -------------------------------------------------------------------------------------------------------
LOCK_ARGS ?=

help:
	@echo 'HushRec: the server of a federated recommender learns sums, and nothing else.'
	@echo
	@echo 'Start here (nothing but Python 3.11+ and make is needed; the first run makes .venv):'
	@echo '  make demo       train a recommender over an encrypted round trip, about two minutes, offline'
	@echo '                    DATASET=ml-100k DATA_DIR=dir   real data; also ml-1m'
	@echo '                    RECIPE=colr  ROUNDS=n          what is trained, and for how long'
	@echo '                    DEMO_ARGS="..."                any other option of: hushrec demo --help'
	@echo '  make test       run the whole test suite'
	@echo '                    PYTEST_ARGS="-x tests/protocols"   a part of it'
	@echo '                    PYTEST_JOBS=                       one test after the other'
	@echo
	@echo 'While you work:'
	@echo '  make setup      make or refresh .venv   (PYTHON=python3.12 chooses the interpreter)'
	@echo '  make format     let ruff fix and format the code'
	@echo '  make lint       ruff: rules and format'
	@echo '  make types      mypy, strict, on the three packages'
	@echo '  make imports    the import rules between and inside the packages'
	@echo '  make check      lint, types, imports and test, one after the other'
	@echo '  make coverage   lines of protocols/ that its tests run: all of sums, privacy and crypto'
	@echo '  make openapi    write openapi/openapi.json from the service'
	@echo '  make docs       build the documentation site, and fail on a broken link: site/index.html'
	@echo '  make bench      every benchmark, the quick way, and one page: $(BENCH_OUT)/index.html'
	@echo '                    DATA_DIR=dir   data sets, without which fidelity is skipped'
	@echo '                    BENCH_ARGS="..."   options of: python -m bench.run_all --help'
	@echo '  make lock       resolve requirements.lock again   (LOCK_ARGS=--upgrade takes the newest)'
	@echo '  make clean      remove caches, build output, demo output and local benchmark results'
	@echo '  make distclean  clean, and remove .venv too'

setup:
	@PYTHON='$(PYTHON)' sh scripts/setup.sh

demo: setup
	@$(BIN)/hushrec demo $(if $(DATASET),--dataset '$(DATASET)') $(if $(DATA_DIR),--data-dir '$(DATA_DIR)') \
		$(if $(RECIPE),--recipe '$(RECIPE)') $(if $(ROUNDS),--rounds '$(ROUNDS)') $(DEMO_ARGS)

test: setup
	@$(BIN)/pytest $(PYTEST_JOBS) $(PYTEST_ARGS)

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

# Every line of what must be right to keep a secret is run by the protocols' own tests.
coverage: setup
	@$(BIN)/pytest -q -n logical --maxprocesses 8 --cov=protocols --cov-report= tests/protocols tests/vectors
	@$(BIN)/coverage report --include='protocols/sums/*,protocols/privacy/*,protocols/crypto/*' --fail-under=100 --skip-covered
	@$(BIN)/coverage report --skip-covered --show-missing

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
	rm -rf hushrec-demo site $(BENCH_OUT)
	find . -path ./.venv -prune -o -path ./.git -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean
	rm -rf .venv .venv-lock
