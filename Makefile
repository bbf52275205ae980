# make venv: an environment with fusetk in .venv; make demo: the whole way on a small corpus; make test: all checks.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
REQUIREMENTS = setup.cfg pyproject.toml constraints.txt

.PHONY: venv demo test man clean

venv: $(VENV)/.installed

$(VENV)/.installed: $(REQUIREMENTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[test]"
	touch $@

demo: venv
	PATH="$(abspath $(BIN)):$$PATH" recipes/run_demo.sh

test: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

man: venv
	$(BIN)/python -m fusetk.cli.manual man

clean:
	rm -rf $(VENV) work build *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
