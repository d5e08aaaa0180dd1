# Everything a person needs, from a fresh machine with Python 3.11+ and make.
#   make demo    the cheapest ways to serve a model, offline once the packages are installed
#   make test    every check: style, types, layers, tests
#   make explore everything that takes longer: more cases of every law, every kill, every spoilt file
#   make size    lines, files and classes by package
#   make docs    the guide as a site, in site/
#   make dist    the wheel and the source archive, in dist/
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
UV ?= uv
INSTALL := $(PIP) install --quiet --require-hashes --only-binary :all:

.DEFAULT_GOAL := help
.PHONY: help demo test pytest explore quick lint size bench docs outputs code dist check-install check-litellm check-wheels licences audit lock clean

help:
	@grep -E '^#   make' Makefile | sed 's/^#   //'

$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit("tokonomics needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 demo") if sys.version_info < (3, 11) else None'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/run: requirements/run.lock pyproject.toml $(VENV)/made
	@echo "Installing tokonomics into $(VENV) …"
	@$(INSTALL) -r requirements/run.lock
	@$(PIP) install --quiet --no-deps --no-index --no-build-isolation --editable .
	@touch $@

# LLVM code of the simulator, beside its sources and ignored by git; made anew when a compiled function has changed.
$(VENV)/code: $(VENV)/run docs/ship_code.py src/tokonomics/machine_code.py src/tokonomics/lowering.py $(wildcard src/tokonomics/serving/*.py src/tokonomics/traffic/prefix_reuse.py)
	@$(BIN)/python docs/ship_code.py
	@touch $@

$(VENV)/dev: requirements/dev.lock $(VENV)/run
	@echo "Installing the checks into $(VENV) …"
	@$(INSTALL) -r requirements/run.lock -r requirements/dev.lock
	@touch $@

$(VENV)/docs: requirements/docs.lock $(VENV)/made
	@echo "Installing mkdocs into $(VENV) …"
	@$(INSTALL) -r requirements/docs.lock
	@touch $@

demo: $(VENV)/code
	@$(BIN)/tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300 --slo ttft_p99=0.5,tpot_p99=50ms --top 5

# Bytecode is kept, whatever the surroundings say: each worker would compile all tests anew, and each of the hundreds of
# processes that they start the whole package.
# One worker more than there are cores: a fifth of the time, tests wait for servers and browsers.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $$(($$(getconf _NPROCESSORS_ONLN) + 1)) --dist worksteal
STYLE := $(BIN)/ruff check . && $(BIN)/ruff format --check .
TYPES := $(BIN)/mypy && $(BIN)/lint-imports --no-logo

lint: $(VENV)/dev
	@$(STYLE)
	@$(TYPES)

# Types and layers are checked beside the tests, which now and then leave a core to them.
test: $(VENV)/dev $(VENV)/code
	@$(STYLE)
	@{ $(TYPES); } & checking=$$!; $(PYTEST); tested=$$?; wait $$checking && exit $$tested

size:
	@$(PYTHON) docs/size.py

pytest: $(VENV)/dev $(VENV)/code
	@$(PYTEST)

# What is marked so, and new cases for every law, twenty times as many: for quiet hours, and every week in CI.
explore: $(VENV)/dev $(VENV)/code
	@EXPLORE=20 $(PYTEST)

quick: $(VENV)/dev $(VENV)/code
	@$(PYTEST) -m 'not slow'

bench: $(VENV)/run
	@for script in benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python -m benchmarks.$$(basename $$script .py) || exit 1; done

# The warning is of MkDocs 2, which the lock keeps out; why not the theme's successor yet: docs/architecture.md.
docs: $(VENV)/docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The guide is in site/: open site/index.html, or with search: $(BIN)/mkdocs serve"

outputs: code
	@$(BIN)/python docs/generate.py

# What users of the wheel need not compile. Not in git: nobody could review it, and another Python makes other bytes.
code: $(VENV)/code

# Built with the locked hatchling, so that nothing is downloaded for it.
dist: $(VENV)/code
	@rm -rf dist
	@$(BIN)/python -m hatchling build --directory dist

check-install: dist
	@$(BIN)/python tests/release/fresh_install.py dist/*.whl

# LiteLLM is large, and a test alone wants it: it gets an environment of its own.
check-litellm:
	@$(PYTHON) tests/release/check_litellm.py

# The three that follow are about packages of others; all but licences need the network.
licences: $(VENV)/run
	@$(BIN)/python tests/release/licences.py

check-wheels:
	@$(PYTHON) tests/release/check_wheels.py $(UV)

audit: $(VENV)/made
	@$(BIN)/python tests/release/audit.py

lock:
	@$(UV) pip compile pyproject.toml --group build --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet --output-file requirements/run.lock
	@$(UV) pip compile pyproject.toml --group dev --constraint requirements/run.lock --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet --output-file requirements/dev.lock
	@$(UV) pip compile --group docs --constraint requirements/dev.lock --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet --output-file requirements/docs.lock
	@$(UV) pip compile --group litellm --constraint requirements/dev.lock --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet --output-file requirements/litellm.lock
	@$(PYTHON) requirements/apart.py requirements/dev.lock requirements/litellm.lock

clean:
	@rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
