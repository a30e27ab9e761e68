# make test        lint, types and tests; creates .venv on first use, and installs what else they need where it can
# make test-long   the tests marked `long` as well
# make test-gpu    the tests that need an NVIDIA GPU, in GPU_JOBS processes
# make heist       installs Procgen, for the environment `heist`; the tests do so too
# make dreamer     installs sheeprl into .venv-dreamer, for `achieve baseline dreamerv3`
# make train       trains the preset quick-max and shows what it learned
# make bench       the environment's and the learner's speed on this machine
# make docs        serves the documentation at http://127.0.0.1:8000
# make reliability  1,000 kills, 1,000,000 wrong inputs, 200,000 steps beside the original; up to an hour
# make clean       removes the virtual environments, caches and build outputs (never runs/)

PYTHON ?= python3
# Where it is set, every process would compile all it imports anew.
unexport PYTHONDONTWRITEBYTECODE
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Procgen's metadata asks for numpy<2 and imageio-ffmpeg<0.4, though it runs with ours: no extra can name it, so it and
# what it imports are installed as they are. There is nothing to build it from: a wheel or nothing.
HEIST_STAMP := $(VENV)/.heist-installed
HEIST := procgen-mirror==0.10.7 gym3==0.3.3 gym==0.26.2 cffi==2.1.1 pycparser==3.12
INSTALL_HEIST = test $(HEIST_STAMP) -nt Makefile || { \
  $(BIN)/python -m pip install --quiet --no-deps --only-binary procgen-mirror $(HEIST) 2>$(VENV)/heist.log && \
  touch $(HEIST_STAMP); }
NO_HEIST = Procgen could not be installed (it has wheels for Python 3.11 and 3.12 on Linux; see $(VENV)/heist.log)
# Two workers, a file to each at a time, in order: files of few tests are not the quickest. PYTEST_ARGS= runs them one by one.
PYTEST_ARGS ?= -n 2 --dist loadfile --no-loadscope-reorder
# sheeprl needs other versions than ours, of Pillow for one: it has an environment of its own, and runs in a process of its own.
DREAMER := .venv-dreamer
SHEEPRL := sheeprl==0.8.4
GPU_JOBS ?= 4
TRAIN_ARGS ?=
BENCH_ARGS ?=

.PHONY: setup heist dreamer optional checked compiled test test-long test-gpu lint types train bench reliability docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "achieve needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@PYTHON=$(PYTHON) tools/system-packages venv
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing PyTorch and what else is needed into $(VENV), a minute or more the first time ..."
	@$(BIN)/python -m pip install --quiet --upgrade pip || true  # of 2026: it takes a third less time than that of 2023
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[dev]'
	@touch $@

heist: $(STAMP)
	@tools/system-packages heist
	@$(INSTALL_HEIST) || { echo "$(NO_HEIST)" >&2; exit 1; }

dreamer: $(DREAMER)/.installed

$(DREAMER)/.installed: pyproject.toml constraints-dreamer.txt
	@PYTHON=$(PYTHON) tools/system-packages venv
	@$(DREAMER)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(DREAMER)
	@echo "installing sheeprl and PyTorch into $(DREAMER), some minutes the first time ..."
	$(DREAMER)/bin/python -m pip install --quiet -c constraints-dreamer.txt $(SHEEPRL) -e .
	@touch $@

# What tests can do without. They are skipped where it is missing, which pytest's summary says; with CI=true they fail.
optional: $(STAMP)
	@tools/system-packages heist browser
	@$(INSTALL_HEIST) || echo "$(NO_HEIST)"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

# Before the tests begin, so that no test waits while another compiles; mypy has the other core meanwhile.
compiled: $(STAMP)
	@$(BIN)/python -c "from achieve import make_vec; [make_vec(name, num_envs=1).reset() for name in ('crafter', 'minigrid')]"

checked: lint optional
	@$(MAKE) --no-print-directory -j2 types compiled

test: checked
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest $(PYTEST_ARGS)

test-long: checked
	CHECK_ALL_SHAPES=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -m 'not gpu' $(PYTEST_ARGS)

# By file, since the tests of one share what is compiled; a test that has the GPU to itself hardly uses it.
test-gpu: compiled
	$(BIN)/python -m pytest -m gpu tests/gpu -n $(GPU_JOBS) --dist loadfile

train: $(STAMP)
	$(BIN)/achieve train --preset quick-max $(TRAIN_ARGS)

bench: $(STAMP)
	$(BIN)/python benchmarks/crafter.py $(BENCH_ARGS)
	$(BIN)/achieve bench

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

reliability: heist
	$(BIN)/python benchmarks/reliability.py all

clean:
	rm -rf $(VENV) $(DREAMER) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './runs/*' -prune -exec rm -rf {} +
	find src -name '*.egg-info' -type d -prune -exec rm -rf {} +
