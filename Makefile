# What a reader needs: `make book`, `make serve`. What a developer needs: `make test`.
PYTHON ?= python3
VENV ?= .venv
PORT ?= 8000
PY := $(VENV)/bin/python

# The matrices are small: threads for each of them only wait for one another.
export OPENBLAS_NUM_THREADS ?= 1

.DEFAULT_GOAL := book
.PHONY: environment book serve lab test test-binder pdf links lint bench lock clean distclean help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/ -/'

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

test-binder: environment  ## run every chapter as Binder would, from an empty environment
	@$(PY) tools/chromium.py
	$(PY) -m pytest -s tests/pages/binder.py

pdf: book  ## print the whole book into one PDF, with bookmarks (needs Chromium)
	@$(PY) tools/chromium.py
	@$(PY) tools/pdf.py

links: environment  ## ask the network whether the links to elsewhere still lead somewhere
	@$(VENV)/bin/jupyter-book build . --builder linkcheck

lint: environment
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

bench: book  ## print the tables of benchmarks/, and keep them in _build/bench.md
	@for script in benchmarks/*.py; do echo; echo "## $$script"; echo; \
	    $(PY) "$$script" || echo "FAILED: $$script"; done | tee _build/bench.md

COMPILE := $(PY) -m uv pip compile --universal --generate-hashes --python-version 3.11 \
    --no-emit-index-url --quiet --custom-compile-command "make lock"

lock: environment  ## renew both lists of pins from the ranges in pyproject.toml
	$(COMPILE) pyproject.toml --extra dev --upgrade --output-file requirements.txt
	rm -f binder/requirements.txt
	$(COMPILE) pyproject.toml binder/requirements.in --extra chapters \
	    --constraints requirements.txt --output-file binder/requirements.txt

clean:  ## remove what was built
	rm -rf _build

distclean: clean  ## remove the environment too
	rm -rf $(VENV) *.egg-info
