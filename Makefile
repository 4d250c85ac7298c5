# What contributors run. CONTRIBUTING.md says what each is for.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: help venv test lint format docs site bench wheel clean

help:
	@echo "make venv | test | lint | format | docs | site | bench | wheel | clean"

venv: .venv/made

.venv/made: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt --upgrade pip
	$(BIN)/pip install -q -c constraints.txt -e . --group dev
	touch $@

test: venv
	$(BIN)/pytest -n 4 --dist loadfile

lint: venv
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python tools/words.py

format: venv
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: venv
	$(BIN)/python tools/schema.py
	$(BIN)/python tools/reference.py
	$(BIN)/python tools/pictures.py

site: venv
	$(BIN)/pip install -q -c constraints.txt --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/html

bench: venv
	$(BIN)/python benchmarks

wheel: venv
	rm -rf build dist
	$(BIN)/python -m build --wheel

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
