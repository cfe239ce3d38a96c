# HomeAgent: `make up` runs it, `make test` tests it. Needs python3 (3.11 or newer) and make, nothing else.

PYTHON ?=
BROWSER ?= yes
ARGS ?=
PACKAGES := kernel memory_service provider_service plugin_host homeagent plugins sdk/homeagent_sdk
UNIT_TESTS := tests/sdk tests/kernel tests/memory_service tests/provider_service tests/plugin_host tests/plugins
RUN := .venv/bin/
CHOICE = $(if $(filter no,$(BROWSER)),-m "not browser")

export PYTHON

.PHONY: help up test check lint types environment test-environment bytecode clean
.DEFAULT_GOAL := help

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo '  make up ARGS="--port 9000 --data-dir ./data" passes options on; make PYTHON=python3.12 up chooses a Python'

up: environment bytecode ## install if needed, and run HomeAgent until Ctrl-C
	@exec $(RUN)homeagent up $(ARGS)

test: test-environment bytecode ## install if needed, and run all checks and all tests
	@if [ "$(BROWSER)" = yes ]; then scripts/browser; fi
	$(RUN)ruff check .
	$(RUN)ruff format --check .
	$(RUN)mypy
	@echo "$(RUN)pytest -n 2 $(CHOICE)"; $(RUN)pytest -n 2 $(CHOICE) || { \
		echo "Once more, one at a time, what failed: a busy machine can pass a time limit. What fails twice is a failure; what does not is a bug too."; \
		$(RUN)pytest --last-failed --last-failed-no-failures none $(CHOICE); }

check: test-environment bytecode lint types ## lint, types and the quick tests: under a minute
	$(RUN)pytest -n 2 -q -m "not chaos and not browser" $(UNIT_TESTS)

lint:
	$(RUN)ruff check .
	$(RUN)ruff format --check .

types:
	$(RUN)mypy

environment:
	@scripts/environment run

test-environment:
	@scripts/environment test

# Done here since a first start that has to compile takes seconds longer, and PYTHONDONTWRITEBYTECODE may be set.
bytecode:
	@$(RUN)python -m compileall -q $(PACKAGES)

clean: ## remove the environment and everything built; your data stays
	rm -rf .venv dist build sdk/dist sdk/build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
