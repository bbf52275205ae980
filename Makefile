# make venv: create an environment with fusetk in .venv
# make demo: train a small model on generated text and show it; PLAIN=1 without fusion
# make dist: build a wheel and a source archive in dist/
# make test: run all checks
# make bench: measure the speed on this machine and compare it with the last time
# make man: generate the manual pages and docs/config-keys.md from the code
# make docs: build the site of docs/ in docs/_build
# make figures: draw the diagrams of docs/, train tiny models and draw their weights
# make layout: generate the picture in CONTRIBUTING.md from the imports
# make clean: delete the environment and caches; work/ and runs/ remain
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
REQUIREMENTS = setup.cfg pyproject.toml constraints.txt

.PHONY: venv demo dist test bench man docs figures layout clean

venv: $(VENV)/.installed

$(VENV)/.installed: $(REQUIREMENTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[test,docs]"
	touch $@

demo: venv
	$(BIN)/fusetk demo --out work/demo $(if $(PLAIN),--plain)

dist:
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt build
	rm -rf dist build
	$(BIN)/python -m build --outdir dist
	@! grep -l example.org setup.cfg CITATION.cff >&2 || \
		echo "these files have https://example.org: write the address there" >&2

# Many tests start Python, which starts faster with stored byte code. The empty value allows it.
test: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= \
		$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile

bench: $(VENV)/.installed-test
	$(BIN)/python tests/benchmarks/bench.py

man: venv
	$(BIN)/python -m tools.manual man
	$(BIN)/python -m tools.config_site_page docs/config-keys.md

docs: $(VENV)/.installed-test
	$(BIN)/python -m sphinx -W --keep-going -E -q -b html docs docs/_build
	@echo "docs/_build/index.html"

figures: venv
	$(BIN)/python -m tools.diagrams docs
	$(BIN)/python -m tools.figures docs

layout: venv
	$(BIN)/python -m tools.layout CONTRIBUTING.md

clean:
	rm -rf $(VENV) build dist docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
