# `make help` lists the targets. Everything installs what it needs into .venv, from lock files with hashes.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

ARGS ?=
PYTEST := .venv/bin/python -m pytest
# Tests at once: real jobs keep the processors busy, waiting does not.
TWO_AT_ONCE := --numprocesses 2 --dist worksteal
THREE_AT_ONCE := --numprocesses 3 --dist worksteal
SIX_AT_ONCE := --numprocesses 6 --dist worksteal
TWO_CLUSTERS := --numprocesses 2 --dist loadfile --no-loadscope-reorder

# Prints a section's name and, at its end, how long it took.
define section
@echo "== $(1)"; start=$$SECONDS; $(2); echo "== $(1): $$((SECONDS - start)) s"
endef

.PHONY: help
help: ## List the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 14

.PHONY: run
run: ## Train a small GPT here, in the image if Docker answers, on all GPUs or two CPU processes (ARGS="--steps 200")
	@images/run.sh run gpt --preset tiny $(ARGS)

.PHONY: setup
setup: .venv/.train ## Make .venv: PyTorch for CUDA 12 and the launcher, from the lock file

.venv/.train: requirements.lock pyproject.toml
	@entrypoint/setup.sh requirements.lock
	@touch $@

.venv/.dev: requirements-dev.lock pyproject.toml
	@entrypoint/setup.sh requirements-dev.lock
	@touch $@

.PHONY: test
test: .venv/.dev .venv/.train engine ## Run all checks and tests; within an hour on two cores
	@echo "== the image is built beside lint, unit and muster; each prints what it said when it is over"
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target image lint test-unit test-muster
	@$(MAKE) --no-print-directory test-launch test-train faults test-docs test-image bench-smoke
	@REHEARSE=1 $(MAKE) --no-print-directory test-gpu
	@echo "== a job of Slurm's goes through its minutes beside compose, release and k8s; each prints what it said when it is over"
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target test-slurm test-compose test-release test-k8s

.PHONY: test-quick
test-quick: lint test-unit ## Run what a change is checked with first, in five minutes: style, types, units, a few real jobs
	$(call section,quick,$(PYTEST) $(TWO_AT_ONCE) tests/docs/test_options.py tests/docs/test_troubleshooting.py tests/launch/test_early.py tests/launch/test_several_nodes.py tests/train/test_exact_resume.py $(ARGS))

.PHONY: test-unit
test-unit: .venv/.dev ## Run the launcher's unit tests (needs no torch)
	$(call section,unit,$(PYTEST) tests/unit $(ARGS))

.PHONY: test-muster
test-muster: .venv/.dev ## Run the tests of how nodes find each other (needs no torch)
	$(call section,muster,$(PYTEST) $(SIX_AT_ONCE) tests/muster $(ARGS))

.PHONY: test-launch
test-launch: .venv/.dev .venv/.train ## Start real jobs: signals, failures, several launchers
	$(call section,launch,$(PYTEST) $(TWO_AT_ONCE) tests/launch $(ARGS))

.PHONY: test-train
test-train: .venv/.dev .venv/.train ## Train for real on the CPU, two gloo processes among it
	$(call section,train,$(PYTEST) $(TWO_AT_ONCE) tests/train $(ARGS))

.PHONY: faults
faults: .venv/.dev .venv/.train engine image ## Harm real jobs in every way that we know, and print what each of them ended with
	$(call section,faults,$(PYTEST) $(THREE_AT_ONCE) tests/faults $(ARGS))

.PHONY: test-image
test-image: .venv/.dev engine image ## Run containers of the image: endings, locks, settings, two nodes
	$(call section,image,$(PYTEST) $(TWO_AT_ONCE) tests/image $(ARGS))

.PHONY: test-compose
test-compose: .venv/.dev engine image ## Bring the compose files up for real, and look at TensorBoard in Chromium
	$(call section,compose,tests/compose/browser.sh; $(PYTEST) tests/compose $(ARGS))

.PHONY: test-release
test-release: .venv/.dev engine image ## Run what a release does: bill of materials, tags, push, archive, extending, workflows
	$(call section,release,tests/release/tools.sh; $(PYTEST) $(TWO_AT_ONCE) tests/release $(ARGS))

.PHONY: test-slurm
test-slurm: .venv/.dev .venv/.train engine image ## Bring a Slurm cluster up for real: jobs, stops, losses, time limits, containers
	$(call section,slurm,tests/slurm/packages.sh; $(PYTEST) $(TWO_CLUSTERS) tests/slurm $(ARGS))

.PHONY: test-k8s
test-k8s: .venv/.dev .venv/.train engine image ## Check the Kubernetes manifests, and rehearse whole jobs of them on the Docker engine
	$(call section,k8s,tests/k8s/packages.sh; $(PYTEST) $(TWO_AT_ONCE) tests/k8s $(ARGS))

.PHONY: engine
engine: ## See to a Docker Engine with buildx and Compose; on Debian it is installed and started
	@images/engine.sh

.PHONY: base
base: ## Build the image's base, Debian 13, from Debian packages, where no image registry answers
	@images/base.sh

.PHONY: image
image: ## Build the image slipway:dev (BASE=… CA=… PIP_CONF=… IMAGE=…)
	@images/build.sh

.PHONY: image-report
image-report: .venv/.dev ## Weigh the image layer by layer, on disk and packed, against the targets (IMAGE=…)
	@.venv/bin/python images/release/report.py

.PHONY: save
save: ## Write the image into dist/, with its checksum, for a site without a network (IMAGE=… ARCHIVE=…)
	@images/release/archive.sh save

.PHONY: load
load: ## Check and load what `make save` wrote (ARCHIVE=…)
	@images/release/archive.sh load

.PHONY: sbom
sbom: ## Put the image's bill of materials (CycloneDX) into dist/
	@images/release/sbom.sh

.PHONY: audit
audit: .venv/.dev ## Ask a service on the internet for known vulnerabilities in the lock
	@images/release/audit.sh

.PHONY: tags
tags: ## Print the tags under which this version is published
	@images/release/tags.sh

.PHONY: release-ref
release-ref: ## Print the git tag to publish: the pushed one, else the newest release
	@images/release/ref.sh

.PHONY: base-digest
base-digest: ## Print the base with its digest, for BASE=… of a release
	@images/release/base_digest.sh

.PHONY: push
push: ## Push the image under its tags, and print it by its digest (REPOSITORY=…)
	@images/release/push.sh

.venv/.bench: requirements-bench.lock bench/setup.sh .venv/.train
	@bench/setup.sh
	@touch $@

.PHONY: bench
bench: .venv/.bench engine image ## Measure every row beside its peers, on an idle machine, into bench/RESULTS.md (ARGS="--only gpt")
	@.venv/bench/bin/python bench/results.py $(ARGS)

.PHONY: bench-smoke
bench-smoke: .venv/.bench engine image ## Run every row of `make bench` once, briefly, without judging its times
	$(call section,bench-smoke,.venv/bench/bin/python bench/results.py --smoke $(ARGS))

.PHONY: bench-gpu
bench-gpu: .venv/.bench ## Measure the rows that need a GPU: bench/RESULTS-GPU.md
	@.venv/bench/bin/python bench/results.py --gpu $(ARGS)

.PHONY: test-gpu
test-gpu: .venv/.dev .venv/.train ## Run the tests that need a GPU; without one they are skipped, or with REHEARSE=1 run on the CPU where that can be
	$(call section,gpu,$(PYTEST) tests/gpu $(ARGS))

.PHONY: docs
docs: .venv/.dev ## Build docs/ as a site in build/site, without warnings or broken links (ARGS=serve shows it while one writes)
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs $(or $(ARGS),build)

.PHONY: test-docs
test-docs: .venv/.dev .venv/.train docs ## Build the site, and run every shell block of the documentation
	$(call section,docs,$(PYTEST) $(TWO_AT_ONCE) tests/docs --durations=0 --durations-min=1 $(ARGS))

.PHONY: bench-muster
bench-muster: .venv/.dev ## Rehearse how up to 256 nodes find each other, on this machine: time, bytes, memory
	@.venv/bin/python bench/muster.py $(ARGS)

# The others are plain PyTorch, parts of which have no types.
CHECKED_EXAMPLES := $(addprefix examples/,own_task.py own_loop.py transformers_finetune.py)
.PHONY: lint
lint: .venv/.dev .venv/.train ## Check style and types: ruff, mypy, shellcheck, yamllint
	$(call section,lint,.venv/bin/ruff check .; .venv/bin/ruff format --check .; .venv/bin/mypy; .venv/bin/mypy $(CHECKED_EXAMPLES); .venv/bin/mypy slurm/unpack.py; \
		git ls-files -z '*.sh' '*.sbatch' .ci/run | xargs -0 .venv/bin/shellcheck; .venv/bin/yamllint --strict .)

.PHONY: format
format: .venv/.dev ## Let ruff put the code into its form
	@.venv/bin/ruff check --fix . ; .venv/bin/ruff format .

# uv resolves for Python 3.11 to 3.13 at once; no index host is written into the files.
LOCK := .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-emit-find-links --no-header --no-annotate pyproject.toml
.PHONY: lock
lock: .venv/.dev ## Write the lock files anew from pyproject.toml
	$(LOCK) --extra train --output-file requirements.lock
	$(LOCK) --extra dev --constraint requirements.lock --output-file requirements-dev.lock
	$(LOCK) --extra bench --no-deps --constraint requirements.lock --output-file requirements-bench.lock

.PHONY: clean
clean: ## Remove what make made, but neither the runs nor the fetched wheels (~/.cache/slipway/wheels)
	rm -rf .venv .tmp build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
