# All the set-up there is: every target installs what it needs into $(VENV) first, with uv where it
# is on the PATH and with pip elsewhere.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
MINOR := $(shell $(PYTHON) -c "import sys; print('%d.%d' % sys.version_info[:2])")
# Versions that were tested together on this Python; CONSTRAINTS= takes the newest of everything.
CONSTRAINTS ?= $(wildcard constraints/$(MINOR).txt)
PINS := $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
UV := $(shell command -v uv 2>/dev/null)
ifdef UV
create = "$(UV)" venv --quiet --seed --allow-existing --no-python-downloads --python "$(PYTHON)" $(1)
install = "$(UV)" pip install --quiet --python $(BIN)/python
else
create = "$(PYTHON)" -m venv $(1)
install = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
endif
# One BLAS thread per process: small blocks are slower on two.
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
# What Python compiles at a first import is kept: every command and test starts processes.
export PYTHONDONTWRITEBYTECODE :=
# Tests compare what is installed with what was meant to be.
export ETAFREE_CONSTRAINTS := $(CONSTRAINTS)

.PHONY: demo tour test tests newest processors extras constraints bench races fuzz mutants coverage compare tournament papers \
	paper docs linkcheck dist lint clean

# The package and what it needs to run, as a user has it; built as a wheel.
$(VENV)/core: pyproject.toml $(CONSTRAINTS) $(wildcard src/etafree/*.py src/etafree/*/*.py)
	$(call create,$(VENV))
	$(install) $(PINS) .
	touch $@

# The checkout itself, with extras, linters and what tests and documentation need.
$(VENV)/dev: pyproject.toml $(CONSTRAINTS)
	$(call create,$(VENV))
	$(install) $(PINS) -e ".[dev]"
	touch $@

# With the packages that etafree is raced against; R's are used if they are there.
$(VENV)/races: $(VENV)/dev
	$(install) $(PINS) -e ".[dev,races]"
	touch $@

demo: $(if $(wildcard $(VENV)/dev),$(VENV)/dev,$(VENV)/core)  ## the paper's Figure 1 in full, beside the published curves
	$(BIN)/etafree figure1 --out demo

tour: $(VENV)/dev  ## calibrate one posterior at five learning rates and save pictures
	$(BIN)/python examples/tour.py

lint: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/house.py

tests: $(VENV)/dev  ## every test, without linters and types; TESTS= takes some files
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(TESTS)

test: lint tests  ## linters, types and every test

newest:  ## every test with the newest version of everything; PYTHON= takes another Python
	$(MAKE) tests CONSTRAINTS= VENV=.venv-newest-$(MINOR) TESTS="$(TESTS)"

processors: $(VENV)/dev  ## every test as on other processors (about 15 minutes each)
	$(BIN)/python tests/processors.py

extras:  ## each extra alone, with the newest versions, in an empty environment: a smoke test
	"$(PYTHON)" tests/extras.py

constraints:  ## tested versions anew, for every Python; needs uv
	$(foreach minor,3.11 3.12 3.13 3.14,"$(or $(UV),$(error make constraints needs uv: pip install uv))" pip compile \
		--quiet --upgrade --no-python-downloads --only-binary :all: --no-annotate --no-header \
		--python-version $(minor) --extra dev --extra races --no-emit-package etafree pyproject.toml \
		--output-file constraints/$(minor).txt &&) true

bench: $(VENV)/dev  ## measure the performance goals; prints one table
	$(BIN)/python -m benchmarks

races: $(VENV)/races  ## the same numbers from other packages: who is faster; RACES= takes some families
	$(BIN)/python -m benchmarks races $(RACES)

fuzz: $(VENV)/dev  ## more than 10,000 generated inputs over readers and public functions
	$(BIN)/python tests/fuzzing.py

mutants: $(VENV)/dev  ## small changes of the numerical code, each of which a test should notice
	$(BIN)/python tests/mutants.py $(MUTANTS)

coverage: $(VENV)/dev  ## coverage of every loss and dependence at five learning rates (about 40 minutes)
	$(BIN)/python -m studies coverage --out build/coverage

compare: $(VENV)/dev  ## learning-rate methods beside calibration on six designs
	$(BIN)/python -m studies compare --out build/compare

tournament: $(VENV)/dev  ## reference laws of single intervals on forty designs (about 40 minutes)
	$(BIN)/python -m studies tournament --out build/tournament

papers: $(VENV)/dev  ## designs of other papers beside their numbers (about 2 minutes)
	$(BIN)/python -m studies papers --out build/papers

paper: $(VENV)/dev  ## an article from the recorded tables, build/paper/article.html and .pdf (about 15 seconds)
	$(BIN)/python -m studies article --out build/paper

docs: $(VENV)/dev  ## the site into build/docs, every example run, every page looked at in Chromium
	ETAFREE_GALLERY_WORKERS=2 $(BIN)/python -m sphinx -W --keep-going -q -d build/doctrees docs build/docs
	ETAFREE_SITE=build/docs $(BIN)/python -m pytest tests/test_site.py

linkcheck: $(VENV)/dev  ## links to other sites; this one needs the internet
	$(BIN)/python -m sphinx -b linkcheck -D plot_gallery=0 -d build/doctrees-links docs build/linkcheck

dist: $(VENV)/dev  ## wheel and sdist, checked, and a smoke test of the wheel in an empty environment
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	ETAFREE_DIST=dist $(BIN)/python -m pytest tests/test_package.py

clean:
	rm -rf .venv .venv-newest-* build dist demo tour docs/auto_gallery docs/generated .pytest_cache \
		.mypy_cache .ruff_cache .hypothesis
