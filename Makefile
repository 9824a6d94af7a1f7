# Everything here works on a machine that has Python 3.11 or newer, make, git and a compiler.
PYTHON ?= python3
BIN := .venv/bin
# setuptools has a note at every editable install, which the newest pip prints: mind folders named as the package
PIP := PYTHONWARNINGS="ignore:Editable installation" $(BIN)/python -m pip install --quiet
export OMP_NUM_THREADS ?= 1

.PHONY: run test test-all lint types docs dist clean

run: .venv/ready  ## train IQL on the embedded Hopper dataset, in some two minutes
	$(BIN)/zoo run algo=iql env=hopper sampler=advantage algo.normalize_obs=true steps=10_000 eval_every=2_500

test: .venv/dev  ## the tests that a change needs: all but the slow ones
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow" $(ARGS)

test-all: .venv/dev  ## the whole test suite
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev  ## mypy sees the package in the layout in which it is installed
	rm -rf build/types && mkdir -p build/types
	cp -r zoo build/types/zoo && cp -r algos envs configs benchmarks build/types/zoo/
	cd build/types && MYPYPATH=.:../../docs ../../$(BIN)/mypy --config-file ../../pyproject.toml -p zoo -m generate

docs: .venv/dev  ## the documentation's site, in build/docs/site: no broken link, and searchable without a network
	$(BIN)/python docs/generate.py
	cd build/docs && ../../$(BIN)/zensical build --strict --clean
	! grep -rl '<script src="http' build/docs/site --include='*.html'  # what needs a network

dist: .venv/dev  ## wheel and sdist, in dist
	rm -rf dist
	$(BIN)/python -m build --outdir dist

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(PIP) --upgrade pip
	$(PIP) --editable .
	touch $@

.venv/dev: .venv/ready
	$(PIP) --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist *.egg-info
