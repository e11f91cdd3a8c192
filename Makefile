# The commands of this project. `make serve` and `make test` need nothing but Python 3.11 or later.

PYTHON ?= python3
BIN := .venv/bin
LISTEN ?= 127.0.0.1:9700
DATA ?= .cellstore
DRILLS ?=

.PHONY: env serve test lint interop bench drill soak lock clean

env: .venv/ready

.venv/ready: requirements.txt requirements-dev.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; set PYTHON=")'
	$(PYTHON) -m venv .venv
	# The lists are whole: without --no-deps pip may look past the pins for a package with extras.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

# A node on this machine, with its data in a local folder. It prints the line to export.
serve: env
	$(BIN)/cellstore serve --listen $(LISTEN) --data-dir $(DATA)

test: lint
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest tests
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The real client and the reference server, against this one. Needs Rust and Go once, to build them
# and an S3 server.
interop: env
	$(BIN)/python -m tests.interop

bench: env
	$(BIN)/python -m bench

# Failovers of real nodes on a real S3 server. Needs Go once, to build that.
drill: env
	$(BIN)/python -m deploy.drills $(DRILLS)

# The simulation of a fleet, for many seeds.
soak: env
	$(BIN)/python -m tests.simulation --seeds 100000

# Pin what is installed, by hash. Needs uv.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
		pyproject.toml -o requirements.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
		--group dev pyproject.toml -o requirements-dev.txt

clean:
	rm -rf .venv .cellstore .mypy_cache .pytest_cache .ruff_cache .hypothesis
