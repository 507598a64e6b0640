# make test: the whole suite, format, lint, types and shell lint among it. make check: the same.
# make test TESTS=tests/config: some of it. make test-fast: what runs no command, in a minute.
# make fuzz MINUTES=30: cases of every kind with new seeds (tests/fuzz), half of the time interrupted
# runs; 1 where one is wrong.
# make mutants ROOMS=launch,scaling N=20 SEED=4: random faults that tests are to notice; ALL=1: by slow tests too.
.PHONY: setup locks test test-fast test-nightly check fuzz mutants lint architecture format clean distclean
.PHONY: gpu-test gpu-hardware lab-test fault-matrix container-test portability-test
PYTHON := .venv/bin/python
FOLDERS := bench cli compliance config data launch logging report scaling scripts sweep train tests
SHELL_SCRIPTS := run_and_time.sh $(wildcard scripts/*.sh tests/lab/*.sh) .ci/run

# Most of the suite's time is waiting, for ranks to start and for patience to end: more processes
# than cores, each with whole files.
TEST_PROCESSES := 3
PARALLEL := -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder
test: setup
	$(PYTHON) -m pytest $(PARALLEL) $(TESTS)

# For the edit loop: no ranks and no commands.
test-fast: setup
	$(PYTHON) -m pytest $(PARALLEL) -n 2 --fast

check: test

MINUTES := 5
fuzz: setup
	$(PYTHON) -m tests.fuzz --minutes $(MINUTES)

# One fault at a time in a copy; by room, how many the tests noticed (docs/architecture.md). Ctrl-C leaves nothing.
mutants: setup
	$(PYTHON) -m tests.mutants $(if $(ROOMS),--rooms $(ROOMS)) $(if $(N),--n $(N)) $(if $(SEED),--seed $(SEED)) \
		$(if $(ALL),--all)

setup:
	@scripts/setup.sh

# The newest versions of what requirements.txt names, with hashes, for each Python.
locks: setup
	scripts/locks.sh

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

# The day a GPU is there: what it does and how fast, in 15 minutes, as a page for docs/notebook/gpu.md.
PAGE := results/gpu.md
gpu-hardware:
	@scripts/setup.sh --gpu --into .venv-gpu
	.venv-gpu/bin/python -m tests.gpu.on_hardware $(PAGE)

# What a night is for: emulated networks, 64 thin ranks, the image, fresh Debians (root), every fault,
# new seeds, and each test marked nightly. Each is a target of its own too.
test-nightly: lab-test fault-matrix container-test portability-test fuzz

lab-test: setup
	$(PYTHON) -m pytest --nightly

fault-matrix: setup
	$(PYTHON) -m tests.faults.matrix

# Builds the image and runs smoke in it; as root where there is no base image (docs/containers.md).
container-test: setup
	tests/lab/container_test.sh $(BASE_IMAGE)

# The README's two commands in fresh Debian 12 and 13, over three MPIs; as root (docs/notebook/portability.md).
# ROOTS=bookworm,trixie,mpich: which.
portability-test:
	tests/lab/portability_test.sh $(if $(ROOTS),--roots $(ROOTS))

# The picture of the rooms and their imports, from the sources.
architecture: setup
	$(PYTHON) -m tests.rooms

format: setup
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

# What programs make again by themselves. No target removes results/ or datasets/: hours are in them.
clean:
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
	find $(FOLDERS) -name __pycache__ -type d -prune -exec rm -rf {} +

# The environments too: the next command sets them up anew.
distclean: clean
	rm -rf .venv .venv-gpu
