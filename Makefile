# Each target does all the set-up it needs, inside this checkout, and only what changed since the last time.
#   make demo | test | lint | build | env | clean
# PYTHON=python3.12  the interpreter to use (3.10 to 3.13)   VENV=.venv  BUILD=build  where the environment and the
# built package go. A sourced ROS 2 is used, else ROS 2 comes from wheels.

VENV ?= .venv
BUILD ?= build
DURATION ?= 20
export VENV BUILD
# Without bytecode every process that imports torch compiles it anew: 2 s each.
unexport PYTHONDONTWRITEBYTECODE

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

# tools/bootstrap.py has the say about the version; one that cannot even read it is turned away here.
PYTHON_ASKED := $(or $(PYTHON),python3)
PYTHON_FOUND := $(shell found=$$(command -v $(PYTHON_ASKED)) && \
  "$$found" -c 'import sys; sys.exit(sys.version_info < (3, 7))' 2>/dev/null && echo "$$found")
ifeq ($(PYTHON_FOUND),)
$(error $(PYTHON_ASKED) is no Python 3.10 to 3.13: name one, for example `make PYTHON=python3.11`)
endif
bootstrap = @$(PYTHON_FOUND) tools/bootstrap.py

# Small networks: a second thread gains nothing, and where others want the cores, too, it waits for most of the time.
test: export OMP_NUM_THREADS ?= 1

# $(call stage,NAME,COMMAND) runs one command in the built environment and says how long it took.
stage = @source $(BUILD)/setup.bash; echo "--- $(1)"; TIMEFORMAT="--- $(1): %1R s"; time $(2)

.PHONY: demo test lint build env clean

demo: build
	$(bootstrap) render
	@source $(BUILD)/setup.bash; mkdir -p runs/demo; \
	  flashrt demo --duration $(DURATION) --json runs/demo/summary.json $(if $(CHECKPOINT),--checkpoint "$(CHECKPOINT)")

test: lint
	$(bootstrap) render
	$(call stage,tests,pytest -m "not graph and not slow" --ignore=test/packaging --durations=5)
	$(call stage,graph tests,pytest -m "graph and not slow" --ignore=test/packaging --durations=5)
	$(call stage,packaging,pytest test/packaging --durations=5)

lint: build
	$(call stage,ruff,ruff check .)
	$(call stage,mypy,mypy)

build:
	$(bootstrap) build

env:
	$(bootstrap) env

clean:
	rm -rf $(VENV) $(BUILD) install log dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
