# All the set-up there is: every target installs what it needs into .venv first.
PYTHON ?= python3
BIN := .venv/bin
# One BLAS thread per process: small blocks are slower on two.
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1

.PHONY: demo tour test bench coverage lint clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: .venv/ready  ## the paper's Figure 1 in full, beside the published curves
	$(BIN)/etafree figure1 --out demo

tour: .venv/ready  ## calibrate one posterior at five learning rates and save pictures
	$(BIN)/python examples/tour.py

lint: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint  ## linters, types and every test
	$(BIN)/python -m pytest -n 2

bench: .venv/ready  ## measure the performance goals; prints one table
	$(BIN)/python -m benchmarks

coverage: .venv/ready  ## coverage of every loss and dependence at five learning rates (about 40 minutes)
	$(BIN)/etafree coverage --out build/coverage

clean:
	rm -rf .venv build dist demo tour .pytest_cache .mypy_cache .ruff_cache .hypothesis
