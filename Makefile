# make test: the whole suite, format, lint, types and shell lint among it. make check: the same.
.PHONY: setup test check lint format clean
PYTHON := .venv/bin/python
SHELL_SCRIPTS := run_and_time.sh scripts/setup.sh scripts/netlab.sh scripts/bind.sh \
  scripts/slurmlab.sh scripts/smoke_local.sh $(wildcard scripts/*.sub) .ci/run

test: setup
	$(PYTHON) -m pytest

check: test

setup:
	@scripts/setup.sh

lint: setup
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/shellcheck $(SHELL_SCRIPTS)

format: setup
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

clean:
	rm -rf .venv results datasets
