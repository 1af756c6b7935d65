# Two commands matter: `make run` and `make test`. Both set up what they need.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup run test test-lowest trust quick lint docs bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[checks,dev]'
	touch $(STAMP)

run: setup
	$(BIN)/python -m time2decide.cli.demo

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

# The same tests with the oldest versions that pyproject.toml allows, in an environment of their own.
test-lowest:
	test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt -e '.[dev]'
	.venv-lowest/bin/python -m pytest -n 2 --dist worksteal

# What docs/trust.md promises, at length (within an hour), and its figures written anew. ONLY=PATH::TEST runs a part.
ONLY ?= tests/trust
trust: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[trust]'
	$(BIN)/python -m pytest -n 2 --dist worksteal -m trust $(ONLY)
	$(BIN)/python -m tests.trust.figures

quick: setup
	$(BIN)/python -m pytest -n 2 -m 'not slow and not trust'

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The documentation site, with every example of the gallery run anew; nothing is fetched. Opens from the disk.
docs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 MPLBACKEND=agg $(BIN)/mkdocs build --clean --quiet
	@echo build/site/index.html

bench: setup
	$(BIN)/time2decide bench all

clean:
	rm -rf .venv .venv-lowest .mypy_cache .ruff_cache .pytest_cache build dist
