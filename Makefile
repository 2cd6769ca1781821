# Everything runs in .venv, which the first target that needs it creates; nothing else has to be there but Python 3.11+.
# Arguments for the program that a target runs go in ARGS:  make test ARGS="-k packaging -n 0"

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

# On Linux the torch of PyPI is the CUDA build and draws some 3 GB of CUDA libraries in; the CPU build (2.13.0+cpu)
# lies on torch's own index. So torch alone is installed first, by itself and with that index as an extra one, where
# "+cpu" sorts above the plain version; what comes after finds torch there. That way no other package is looked up on
# that index, and a machine that cannot reach it, but gets a CPU build elsewhere, loses one short attempt.
# For the CUDA build: make TORCH_INDEX= test
ifeq ($(shell uname -s),Linux)
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
endif
torch_flags := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX) --retries 1 --timeout 15)

bin := $(VENV)/bin
pip_install := $(bin)/python -m pip --disable-pip-version-check --no-input install -c constraints.txt

# What the extension is compiled from: where any of it changes, it is compiled again.
native := $(wildcard functional_rb/native/src/*) tools/native_build.py tools/build_hook.py

.DEFAULT_GOAL := help
.PHONY: help demo demo-torch test test-all test-device gpu test-oldest test-newest check format bench wheel wheel-check constraints clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.installed-examples ## train a DQN with a prioritized buffer, all of it in JAX, and evaluate it
	$(bin)/python examples/dqn_jax.py $(ARGS)

demo-torch: $(VENV)/.installed-examples ## the same task on torch, with a Gymnasium vector environment
	$(bin)/python examples/dqn_torch.py $(ARGS)

test: $(VENV)/.installed-dev ## run the tests, in 8 to 13 minutes on two quiet cores
	$(bin)/python -m pytest $(ARGS)

test-all: $(VENV)/.installed-dev ## run them with the long searches and the harness of the benchmarks
	TESTS=all $(bin)/python -m pytest $(ARGS)

# Modules whose tests of torch all pass there, and that find much in little time; docs/install.md says what the others meet.
on_device := members every_variant epochs errors errors_of_strategies n_step n_step_agents leaf_order arguments distribution \
    slice_start spans hindsight writers frame_dedup respec forged_states subclasses keys
test-device: ARGS = tests/device $(on_device:%=tests/contract/test_%.py) tests/mixture tests/items/test_images.py \
    tests/text/test_rollouts.py tests/specs/test_shapes.py
test-device: $(VENV)/.installed-dev ## run tests of torch on a device without one, whose memory the host may not touch
	TESTS_DEVICE=elsewhere $(bin)/python -m pytest $(ARGS)

gpu: ## all there is to do on a machine with a GPU, in ten minutes, with what PYTHON has there (docs/install.md)
	$(PYTHON) -m tools.gpu $(ARGS)

test-oldest: functional_rb/_native.abi3.so ## run the tests on the oldest versions that pyproject.toml takes, on Python 3.11, 3.12 and 3.13
	$(bin)/python tools/matrix.py oldest --torch-index "$(TORCH_INDEX)" $(ARGS)

test-newest: functional_rb/_native.abi3.so ## run them on the newest versions of everything, as they are found at that time
	$(bin)/python tools/matrix.py newest --torch-index "$(TORCH_INDEX)" $(ARGS)

check: $(VENV)/.installed-dev ## formatter, linter, type checker, and that no import points upwards or around
	$(bin)/ruff format --check .
	$(bin)/ruff check .
	$(bin)/mypy
	$(bin)/lint-imports --no-cache

format: $(VENV)/.installed-dev ## let the formatter and the linter repair what they can
	$(bin)/ruff check --fix .
	$(bin)/ruff format .

bench: $(VENV)/.installed-bench ## compare with other replay buffers (ARGS=--quick for a minute's run)
	$(bin)/python -m benchmarks $(ARGS)

wheel: $(VENV)/.installed-dev ## build dist/*.whl
	$(bin)/python -m build --wheel --no-isolation --outdir dist .

wheel-check: $(VENV)/.installed-dev ## install the wheel in empty environments and run the README's quickstarts
	$(bin)/python tools/check_wheel.py --torch-index "$(TORCH_INDEX)"

constraints: | $(bin)/python ## pin the newest versions of everything in constraints.txt
	rm -rf .venv-pin && $(bin)/python -m venv .venv-pin
	.venv-pin/bin/python -m pip install $(torch_flags) --no-deps torch
	.venv-pin/bin/python -m pip install '.[bench,dev,ray,transfer-queue]'
	.venv-pin/bin/python tools/pin.py
	rm -rf .venv-pin

functional_rb/_native.abi3.so: $(native) | $(bin)/python
	$(pip_install) hatchling $$($(bin)/python tools/native_build.py --requires)
	$(bin)/python tools/native_build.py

clean: ## remove what was built, keep .venv
	rm -rf build dist functional_rb/_native.abi3.so functional_rb/native/gpu-* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.*' -prune -exec rm -rf {} +

distclean: clean ## remove .venv too
	rm -rf $(VENV)

$(bin)/python:
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(sys.version_info < (3, 11) and \
	    f"functional_rb needs Python 3.11 or newer and this is {v}; say which to use: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# One stamp for each extra: installed once, and again when what is to be installed has changed. The build backend is
# installed under the constraints too, which is why the build is not isolated.
$(VENV)/.installed-%: pyproject.toml constraints.txt functional_rb/_native.abi3.so | $(bin)/python
	$(pip_install) $(torch_flags) --no-deps torch
	$(pip_install) --no-build-isolation --editable '.[$*]'
	@touch $@
