# What a reader needs: `make book`, `make serve`. What a developer needs: `make test`.
PYTHON ?= python3
VENV ?= .venv
PORT ?= 8000
PY := $(VENV)/bin/python

.DEFAULT_GOAL := book
.PHONY: environment book serve lab test lint bench lock clean distclean help

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' Makefile | sed 's/:.*##/ -/'

environment:
	@$(PYTHON) tools/environment.py $(VENV)

book: environment  ## build the book into _build/html
	@$(PY) tools/book.py
	@echo "The book is in _build/html. To read it: make serve, then open http://localhost:$(PORT)/"

serve: book  ## serve the built book on localhost (PORT=8000)
	@$(PY) tools/serve.py $(PORT)

lab: environment  ## open the chapters as notebooks in JupyterLab
	@$(PY) -m jupyterlab chapters

test: book lint  ## build the book and run every test, in a browser too
	@$(PY) tools/chromium.py
	$(PY) -m pytest

lint: environment
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

bench: environment  ## print the tables of benchmarks/
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(PY) "$$script"; done

lock: environment  ## renew requirements.txt from the ranges in pyproject.toml
	$(PY) -m uv pip compile pyproject.toml --extra dev --universal --generate-hashes \
	    --python-version 3.11 --no-emit-index-url --upgrade --quiet \
	    --custom-compile-command "make lock" --output-file requirements.txt

clean:  ## remove what was built
	rm -rf _build

distclean: clean  ## remove the environment too
	rm -rf $(VENV) *.egg-info
