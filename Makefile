# All the set-up there is: every target installs what it needs into .venv first.
PYTHON ?= python3
BIN := .venv/bin
# One BLAS thread per process: small blocks are slower on two.
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1

.PHONY: demo tour test bench fuzz coverage docs linkcheck dist lint clean

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
	$(BIN)/python -m pytest -n 2 --dist loadgroup

bench: .venv/ready  ## measure the performance goals; prints one table
	$(BIN)/python -m benchmarks

fuzz: .venv/ready  ## more than 10,000 generated inputs over readers and public functions
	$(BIN)/python tests/fuzzing.py

coverage: .venv/ready  ## coverage of every loss and dependence at five learning rates (about 40 minutes)
	$(BIN)/etafree coverage --out build/coverage

docs: .venv/ready  ## the site into build/docs, every example run, every page looked at in Chromium
	ETAFREE_GALLERY_WORKERS=2 $(BIN)/python -m sphinx -W --keep-going -q -d build/doctrees docs build/docs
	ETAFREE_SITE=build/docs $(BIN)/python -m pytest tests/test_site.py

linkcheck: .venv/ready  ## links to other sites; this one needs the internet
	$(BIN)/python -m sphinx -b linkcheck -D plot_gallery=0 -d build/doctrees-links docs build/linkcheck

dist: .venv/ready  ## wheel and sdist, checked, and a smoke test of the wheel in an empty environment
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	ETAFREE_DIST=dist $(BIN)/python -m pytest tests/test_package.py

clean:
	rm -rf .venv build dist demo tour docs/auto_gallery docs/generated .pytest_cache .mypy_cache .ruff_cache .hypothesis
