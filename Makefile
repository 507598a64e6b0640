# `make` or `make help` lists the targets: the line after each one's `##`.
.PHONY: help setup locks test test-fast test-nightly check fuzz lint architecture format clean distclean
.PHONY: gpu-test gpu-hardware lab-test fault-matrix container-test portability-test
PYTHON := .venv/bin/python
FOLDERS := bench cli compliance config data host launch logging predict report scripts sweep train tests
SHELL_SCRIPTS := run_and_time.sh $(wildcard scripts/*.sh tests/lab/*.sh) .ci/run

help: ## this list
	@sed -n 's/^\([a-z-]*\):.* ## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

# Most of the suite's time is waiting, for ranks to start and for patience to end: more processes
# than cores, each with whole files.
TEST_PROCESSES := 3
PARALLEL := -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder
test: setup ## the whole suite, with format, lint and types; TESTS=tests/config: some of it
	$(PYTHON) -m pytest $(PARALLEL) $(TESTS)

test-fast: setup ## in a minute: what starts no ranks and no commands
	$(PYTHON) -m pytest $(PARALLEL) -n 2 --fast

check: test ## the same as test

MINUTES := 5
fuzz: setup ## runs that are interrupted at random moments and resumed, with new seeds; MINUTES=30
	$(PYTHON) -m tests.fuzz --minutes $(MINUTES)

setup: ## .venv, up to date; seconds if nothing has changed
	@scripts/setup.sh

locks: setup ## the newest versions of what requirements.txt leaves open, for each Python; 3 minutes
	scripts/locks.sh

lint: setup ## format, lint, types, shell scripts and Dockerfile, in half a minute
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/shellcheck $(SHELL_SCRIPTS)
	.venv/bin/hadolint Dockerfile

# The real rank on mxnet-cu112 over a fake CUDA, without a GPU. Its environment, 6 GB, lies beside .venv.
gpu-test: ## the GPU path over a fake CUDA, without a GPU; its environment .venv-gpu takes 6 GB
	@scripts/setup.sh --gpu --into .venv-gpu
	.venv-gpu/bin/python -m pytest -n 2 tests/gpu

# The day a GPU is there: what it does and how fast, in 10 minutes, as a page for docs/notebook/gpu.md.
PAGE := results/gpu.md
gpu-hardware: ## on a machine with GPUs: what they do and how fast, in 10 minutes, as a page and CSV
	@scripts/setup.sh --gpu --into .venv-gpu
	.venv-gpu/bin/python -m tests.gpu.on_hardware $(PAGE)

test-nightly: lab-test fault-matrix container-test portability-test fuzz ## for a night: the next four and fuzz

lab-test: setup ## emulated networks, 64 thin ranks, every test that is marked nightly
	$(PYTHON) -m pytest --nightly

fault-matrix: setup ## every fault of every kind, one after another
	.venv/bin/rn50 data prepare smoke
	$(PYTHON) -m tests.faults.matrix

container-test: setup ## builds the image and runs smoke in it (docs/containers.md); BASE_IMAGE=...
	tests/lab/container_test.sh $(BASE_IMAGE)

# The README's two commands in fresh Debian 12 and 13, over three MPIs; as root (docs/notebook/portability.md).
# ROOTS=bookworm,trixie,mpich: which.
portability-test: ## the two commands of README in fresh Debian 12 and 13, as root; ROOTS=bookworm,mpich
	tests/lab/portability_test.sh $(if $(ROOTS),--roots $(ROOTS))

architecture: setup ## the picture of the rooms and their imports, from the sources
	$(PYTHON) -m tests.rooms

format: setup ## formats, and mends what ruff can mend
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

# What programs make again by themselves. No target removes results/ or datasets/: hours are in them.
clean: ## removes caches; never results/ or datasets/
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
	find $(FOLDERS) -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## clean, and the environments .venv and .venv-gpu
	rm -rf .venv .venv-gpu
