# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo

.PHONY: demo test lint bench install system clean

install: $(STAMP)

$(STAMP): pyproject.toml scripts/system.sh
	@$(MAKE) --no-print-directory system
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all,dev]'
	@touch $(STAMP)

system:
	@sh scripts/system.sh

# The demo needs PyTorch only; a full installation serves as well.
$(DEMO_STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[torch]'
	@touch $(DEMO_STAMP)

demo: $(if $(wildcard $(STAMP)),install,$(DEMO_STAMP))
	@$(BIN)/trainmaster run examples/digits/recipe.yaml --yes

lint: install
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python scripts/file_length.py

test: install lint
	@bash scripts/test.sh $(BIN)/python

bench: install
	@$(BIN)/python benchmarks/run_all.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
