# make test: the whole suite, format, lint, types and shell lint among it. make check: the same.
.PHONY: setup test check lint format clean container-test gpu-test
PYTHON := .venv/bin/python
SHELL_SCRIPTS := run_and_time.sh $(wildcard scripts/*.sh) $(wildcard scripts/*.sub) .ci/run

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
	.venv/bin/hadolint Dockerfile

# The real rank on mxnet-cu112 over a fake CUDA, without a GPU. Its environment, 6 GB, lies beside .venv.
gpu-test:
	@scripts/setup.sh --gpu --into .venv-gpu
	.venv-gpu/bin/python -m pytest tests/gpu

# Builds the image and runs smoke in it; as root where there is no base image (docs/containers.md).
container-test: setup
	scripts/container_test.sh $(BASE_IMAGE)

format: setup
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

clean:
	rm -rf .venv results datasets
