# One door for people and CI. Each target sets up all it needs, given Python >= 3.11 and make.
#
#   .venv/place             the environment exists, and was made in the folder that this names
#   .venv/installer.stamp   it holds uv
#   .venv/train.stamp       it holds requirements/train.lock and this package
#   .venv/delta.stamp       it holds requirements/delta.lock, a superset of train.lock, and this package
#   .venv/dev.stamp         it holds requirements/dev.lock, a superset of delta.lock, and this package
#   .venv-gym/gym.stamp     NeMo Gym's own environment holds requirements/gym.lock
#
# At most one of train, delta and dev exists, since each takes away what only another one holds.

# An explicit PYTHON is the only candidate; otherwise the first that is recent enough wins.
PYTHON ?=
CANDIDATES := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)
# NeMo Gym needs a newer one; its environment stands apart.
GYM_PYTHON ?=
GYM_CANDIDATES = $(or $(GYM_PYTHON),python3.13 python3.12 \
	$$(ls -d "$$(pyenv root 2>/dev/null)"/versions/3.1[23].*/bin/python 2>/dev/null | sort -rV) python3)
NAME := quickstart-$(shell date +%Y%m%d-%H%M%S)

# uv trusts what the machine trusts, as pip does; its own list is for machines that have none.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem),)
export UV_SYSTEM_CERTS ?= 1
endif

BIN := .venv/bin
RUN := $(BIN)/python -m experiment
# A development environment also serves the quickstart, so that the two never replace each other.
DELTA_ENV = $(if $(wildcard .venv/dev.stamp),dev,delta)
QUICKSTART_ENV = $(if $(wildcard .venv/dev.stamp .venv/delta.stamp),$(DELTA_ENV),train)

# An environment that was moved, or whose interpreter is gone, is built anew.
$(shell [ -x $(BIN)/python ] && [ "$$(cat .venv/place 2>/dev/null)" = '$(CURDIR)' ] || rm -f .venv/place .venv/*.stamp)
$(shell [ -x .venv-gym/bin/python ] && [ "$$(cat .venv-gym/place 2>/dev/null)" = '$(CURDIR)' ] || rm -f .venv-gym/gym.stamp)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help quickstart test test-all test-faults test-qualification test-services bench-delta delta-env gym-env \
	check lock

help:
	@echo 'make quickstart   build a stand-in policy, run a whole experiment on it, audit and report it'
	@echo 'make test         unit, property, fault and integration tests'
	@echo 'make test-all     those, the slow ones, and the command line from end to end'
	@echo 'make test-qualification'
	@echo '                  planted faults alone, with a list of what caught each'
	@echo 'make test-faults  crashes and damage, then a real run that is killed at random moments and compared'
	@echo 'make test-services'
	@echo '                  the worlds on their real services: Spark and Delta Lake, NeMo Gym'
	@echo 'make bench-delta  the Delta world against a plain way, side by side, in about 20 minutes'
	@echo 'make check        formatting, style, types, import layers'
	@echo 'make delta-env    the environment of the Delta world: Spark, and a Java runtime'
	@echo 'make gym-env      the environment of NeMo Gym (Python >= 3.12, or GYM_PYTHON=/path/to/python3.13) in .venv-gym'
	@echo 'make lock         resolve requirements/*.lock afresh (UPGRADE=1: to the newest versions)'
	@echo
	@echo 'PYTHON=/path/to/python3.12 chooses the interpreter (>= 3.11); the environment goes to .venv.'

quickstart: .venv/$(QUICKSTART_ENV).stamp
	@echo '==> 1/5 baseline: the starting policy'
	@$(RUN) baseline recipes/quickstart.toml
	@echo '==> 2/5 prepare: freeze the plan'
	@$(RUN) prepare recipes/quickstart.toml --output plans/$(NAME)
	@echo '==> 3/5 run: qualify, train, select, assess'
	@$(RUN) run --plan plans/$(NAME)/plan.json --run-dir runs/$(NAME)
	@echo '==> 4/5 audit: decide everything again from the files'
	@$(RUN) audit runs/$(NAME)
	@echo '==> 5/5 report'
	@$(RUN) report runs/$(NAME) --output runs/$(NAME)-report
	@echo 'run: runs/$(NAME)'
	@echo "report: $$(ls runs/$(NAME)-report/*.html)"

test: .venv/dev.stamp
	@$(BIN)/python -m pytest

test-all: .venv/dev.stamp
	@$(BIN)/python -m pytest -m ''

test-qualification: .venv/dev.stamp
	@$(BIN)/python -m pytest -m planted

test-faults: .venv/dev.stamp
	@$(BIN)/python -m pytest -m 'fault and not campaign'
	@$(BIN)/python -m pytest -m campaign

test-services: .venv/dev.stamp .venv-gym/gym.stamp
	@$(BIN)/python -m pytest -m service

delta-env: .venv/$(DELTA_ENV).stamp

bench-delta: .venv/$(DELTA_ENV).stamp
	@$(BIN)/python bench/delta_world.py

check: .venv/dev.stamp
	@$(BIN)/ruff format --check --quiet --output-format concise . || { echo 'Remedy: $(BIN)/ruff format .'; exit 1; }
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-cache > .venv/lint-imports.log || { cat .venv/lint-imports.log; exit 1; }
	@echo 'check: formatting, style, types and import layers are clean'

# The smaller locks are constrained by the largest, so that all environments hold the same versions.
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header $(if $(UPGRADE),--upgrade)

lock: .venv/installer.stamp
	@$(COMPILE) pyproject.toml --extra train --extra report --extra delta --extra dev -o requirements/dev.lock
	@$(COMPILE) pyproject.toml -c requirements/dev.lock --extra train --extra report -o requirements/train.lock
	@$(COMPILE) pyproject.toml -c requirements/dev.lock --extra train --extra report --extra delta -o requirements/delta.lock
	@$(COMPILE) pyproject.toml -c requirements/dev.lock -o requirements/base.lock
	@$(subst 3.11,3.12,$(COMPILE)) requirements/gym.in -c requirements/base.lock -o requirements/gym.lock
	@echo uv | $(COMPILE) - -c requirements/dev.lock -o requirements/installer.lock
	@if grep -n '://' requirements/*.lock; then echo 'A lock names an address (above).'; exit 1; fi
	@echo 'lock: requirements/ is up to date'

gym-env: .venv-gym/gym.stamp

# A name on PATH may be a stand-in that runs nothing, so each candidate is tried.
.venv-gym/gym.stamp: requirements/gym.lock .venv/installer.stamp
	@set -eu; \
	for candidate in $(GYM_CANDIDATES); do \
	    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then \
	        python=$$candidate; break; \
	    fi; \
	done; \
	if [ -z "$${python:-}" ]; then \
	    echo 'NeMo Gym needs Python >= 3.12, and none runs: $(or $(GYM_PYTHON),neither on PATH nor of pyenv).'; \
	    echo 'Remedy: install Python 3.13, or name one: make gym-env GYM_PYTHON=/path/to/python3.13'; \
	    exit 2; \
	fi; \
	echo "==> environment: .venv-gym from $$($$python -c 'import sys; print(sys.executable, sys.version.split()[0])')"; \
	rm -rf .venv-gym; \
	$(BIN)/uv venv --quiet --no-python-downloads --python "$$($$python -c 'import sys; print(sys.executable)')" .venv-gym
	@echo '==> packages: $<'
	@$(BIN)/uv pip sync --quiet --python .venv-gym/bin/python --compile-bytecode --require-hashes $<
	@printf '%s' '$(CURDIR)' > .venv-gym/place
	@touch $@

.venv/place:
	@set -eu; \
	for candidate in $(CANDIDATES); do \
	    if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        python=$$candidate; break; \
	    fi; \
	done; \
	if [ -z "$${python:-}" ]; then \
	    echo 'No Python >= 3.11 with venv among: $(CANDIDATES).'; \
	    echo 'Remedy: install one (Debian: python3 and python3-venv), or name it: make PYTHON=/path/to/python3 ...'; \
	    exit 2; \
	fi; \
	echo "==> environment: .venv from $$($$python -c 'import sys; print(sys.executable, sys.version.split()[0])')"; \
	$$python -m venv --clear .venv
	@printf '%s' '$(CURDIR)' > $@

.venv/installer.stamp: requirements/installer.lock .venv/place
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

.venv/%.stamp: requirements/%.lock .venv/installer.stamp pyproject.toml
	@echo '==> packages: $<'
	@rm -f .venv/train.stamp .venv/dev.stamp .venv/delta.stamp
	@$(BIN)/uv pip sync --python $(BIN)/python --compile-bytecode --require-hashes $<
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@
