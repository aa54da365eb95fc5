# Everything runs in an environment of its own, made here; nothing has to be installed beforehand
# but Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test system lint types bench clean

demo: $(STAMP)
	$(BIN)/hubbub demo

test: lint types system
	$(BIN)/pytest -n auto --dist loadgroup -rs

# A browser, Java, nginx and systemd's check of units, for the tests that need them; elsewhere than in CI these tests may be left out.
system:
	sh scripts/install_system.sh || test -z "$$CI"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo

types: $(STAMP)
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python benchmarks/book.py

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("hubbub needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) demo out
