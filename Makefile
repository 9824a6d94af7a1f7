# Everything here works on a machine that has Python 3.11 or newer, make, git and a compiler.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1

.PHONY: run test lint types clean

run: .venv/ready  ## train IQL on the embedded Hopper dataset for a few minutes
	$(BIN)/zoo run algo=iql env=hopper steps=60_000

test: .venv/dev  ## the whole test suite
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev  ## mypy sees the package in the layout in which it is installed
	rm -rf build/types && mkdir -p build/types
	cp -r zoo build/types/zoo && cp -r algos envs configs benchmarks build/types/zoo/
	cd build/types && MYPYPATH=. ../../$(BIN)/mypy --config-file ../../pyproject.toml -p zoo

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/dev: .venv/ready
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist *.egg-info
