# Everything runs in an environment of its own, made here; nothing has to be installed beforehand
# but Python 3.11 or newer and make. The demo needs a fifth of what the tests need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: demo test js-test system lint types bench docs clean

demo: $(DEMO_STAMP)
	$(BIN)/hubbub demo

test: lint types system js-test
	$(BIN)/pytest -n auto --dist loadgroup -rs

# The client for browsers; installs Node 20 in the environment if the system has none.
js-test: $(STAMP)
	sh scripts/js.sh test

# A browser, Java, nginx and systemd's check of units, for the tests that need them; elsewhere than in CI these tests may be left out.
system:
	sh scripts/install_system.sh || test -z "$$CI"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	sh scripts/js.sh run lint

types: $(STAMP)
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python benchmarks/book.py

# The pages in docs/ as a site with the Python reference. To look at it, search included: python3 -m http.server -d site
docs: $(STAMP)
	$(BIN)/mkdocs build

# Everything, which includes what the demo needs.
$(STAMP): pyproject.toml
	$(call environment)
	$(PIP) -e '.[dev]'
	touch $(STAMP) $(DEMO_STAMP)

$(DEMO_STAMP): pyproject.toml
	@date +%s > .started
	$(call environment)
	$(PIP) -e '.[fast,plots]'
	@echo "Environment: $$(du -sm $(VENV) | cut -f1) MB, set up in $$(($$(date +%s) - $$(cat .started))) s."
	@rm .started
	touch $(DEMO_STAMP)

define environment
$(PYTHON) -c 'import sys; sys.exit("hubbub needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
$(PYTHON) -m venv $(VENV)
endef

clean:
	rm -rf $(VENV) demo out site clients/js/node_modules clients/js/dist clients/js/build
