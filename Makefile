# `make help` lists the targets. Everything installs what it needs into .venv, from lock files with hashes.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

ARGS ?=
# tests/sections.py lists the sections of the tests; tests/run.py prints their results and the table at the end.
SECTIONS := .venv/bin/python tests/run.py

.PHONY: help
help: ## List the targets (ARGS=all describes all of them)
	@awk -v first="run demo setup test image lint docs" -v all="$(filter all,$(ARGS))" -f entrypoint/targets.awk $(MAKEFILE_LIST)

.PHONY: run
run: ## Train a small GPT, in the image if Docker answers (ARGS="--steps 200")
	@images/run.sh run gpt --preset tiny $(ARGS)

.PHONY: demo
demo: ## Kill a rank under torchrun and under Slipway, and compare; takes a minute or two
	@images/run.sh demo

.PHONY: setup
setup: .venv/.train ## Make .venv with PyTorch and the launcher, from the lock file

.venv/.train: locks/requirements.lock pyproject.toml
	@entrypoint/setup.sh locks/requirements.lock
	@touch $@

.venv/.dev: locks/requirements-dev.lock pyproject.toml entrypoint/slipway.pth
	@entrypoint/setup.sh locks/requirements-dev.lock
	@touch $@

.PHONY: test
test: .venv/.dev .venv/.train ## Run the most important tests that this machine can run
	@$(SECTIONS) -- $(ARGS)

##@ Tests
.PHONY: test-nightly
test-nightly: .venv/.dev .venv/.train .venv/.bench ## Run all tests; takes hours (PART=1/4 runs a quarter of them)
	@TIER=nightly SIM_SEEDS=20000 STOPS=5 $(SECTIONS) -- $(ARGS)

.PHONY: test-under-load
test-under-load: .venv/.dev .venv/.train ## Run the core tests that need no engine while other programs keep every core busy
	@TIER=core tests/under_load.sh $(SECTIONS) unit rendezvous launch train

.PHONY: test-tools
test-tools: .venv/.train .venv/.bench ## Install what all tests need, on Debian: engine, Slurm, kubectl, a browser and more; elsewhere, print what that is
	@tests/tools.sh

.PHONY: test-unit
test-unit: .venv/.dev ## Run the launcher's unit tests (needs no torch); each of these takes ARGS="-k slurm" and TIER=nightly
	@$(SECTIONS) unit -- $(ARGS)

.PHONY: test-rendezvous
test-rendezvous: .venv/.dev ## Run the tests of how nodes find each other (needs no torch)
	@$(SECTIONS) rendezvous -- $(ARGS)

.PHONY: test-sim
test-sim: .venv/.dev ## Simulate jobs whose nodes fail, with a virtual clock and network (needs no torch; SIM_SEEDS=20000, SIM_SEED=17)
	@$(SECTIONS) sim -- $(ARGS)

.PHONY: test-launch
test-launch: .venv/.dev .venv/.train ## Start real jobs: signals, failures, several launchers
	@$(SECTIONS) launch -- $(ARGS)

.PHONY: test-train
test-train: .venv/.dev .venv/.train ## Train for real on the CPU, also in two processes over gloo
	@$(SECTIONS) train -- $(ARGS)

.PHONY: faults
faults: .venv/.dev .venv/.train ## Inject every known fault into real jobs, and print how each job ended
	@$(SECTIONS) faults -- $(ARGS)

.PHONY: hangs
hangs: .venv/.dev .venv/.train ## Run programs that hang in every known way, and print what is reported for each (ARGS="a word of their names")
	@.venv/bin/python -u tests/hangs/hangs.py $(ARGS)

.PHONY: test-docs
test-docs: .venv/.dev .venv/.train ## Build the site, and run the shell blocks of the documentation
	@$(SECTIONS) docs -- $(ARGS)

.PHONY: test-torch
test-torch: .venv/.dev ## Run own scripts with another PyTorch and the wheel, in .venv/torch; takes up to 8 GB (TORCH=2.13.0)
	@tests/other_torch.sh $(ARGS)

.PHONY: test-image
test-image: .venv/.dev .venv/.train ## Run containers of the image: exit codes, locks, settings, two nodes
	@$(SECTIONS) image -- $(ARGS)

.PHONY: test-compose
test-compose: .venv/.dev .venv/.train ## Start the compose files, and look at TensorBoard in Chromium
	@$(SECTIONS) compose -- $(ARGS)

.PHONY: test-release
test-release: .venv/.dev .venv/.train ## Run what a release does: bill of materials, tags, push, archive, extending, workflows
	@$(SECTIONS) release -- $(ARGS)

.PHONY: test-slurm
test-slurm: .venv/.dev .venv/.train ## Start a real Slurm cluster: jobs, stops, losses, time limits, containers
	@$(SECTIONS) slurm -- $(ARGS)

.PHONY: test-machine
test-machine: .venv/.dev .venv/.train ## Try the README's commands in a Debian container that has nothing, as root and as nobody
	@TIER=nightly $(SECTIONS) machine -- $(ARGS)

.PHONY: test-k8s
test-k8s: .venv/.dev .venv/.train ## Check the Kubernetes manifests, and run whole jobs of them on the Docker engine
	@$(SECTIONS) k8s -- $(ARGS)

.PHONY: test-gpu
test-gpu: .venv/.dev .venv/.train ## Run the tests that need a GPU; without one, those that a CPU can stand in for
	@TIER=nightly $(SECTIONS) gpu -- $(ARGS)

.PHONY: mutants
mutants: .venv/.dev ## Change the launcher's decisions on purpose, and print the changes that no test noticed; 15 minutes (ARGS=--all, ARGS="plan ending")
	@.venv/bin/python tests/mutants/mutants.py $(ARGS)

.PHONY: counts
counts: .venv/.dev ## Count what the structure of the package costs its readers (ARGS=REVISION counts an earlier one)
	@.venv/bin/python tests/counts.py $(ARGS)

.PHONY: chaos
chaos: .venv/.dev .venv/.train ## Kill, freeze and disconnect jobs at random, and compare their results with undisturbed ones (ARGS="--minutes 20 --seed 7")
	@.venv/bin/python -u tests/chaos/chaos.py $(ARGS)

##@ The image
.PHONY: engine
engine: ## Check for a Docker Engine with buildx and Compose; on Debian, install and start it
	@images/engine.sh

.PHONY: base
base: ## Build the image's base from Debian packages, for places without an image registry
	@images/base.sh

.PHONY: image
image: ## Build the image slipway:dev (VARIANT=cuda13 or cpu; BASE=… CA=… PIP_CONF=… IMAGE=…)
	@images/build.sh

.PHONY: launcher
launcher: ## Build slipway:launcher, an image that puts the launcher into an image of your own (BASE=… CA=… PIP_CONF=… IMAGE=…)
	@TARGET=launcher VARIANT=cpu IMAGE="$${IMAGE:-slipway:launcher}" images/build.sh

.PHONY: image-report
image-report: .venv/.dev ## Report the size of each layer of the image, on disk and compressed, against the targets (IMAGE=…)
	@source images/variant.sh; IMAGE="$$image" .venv/bin/python images/release/report.py

.PHONY: save
save: ## Write the image and its checksum into dist/, for a site without a network (IMAGE=… ARCHIVE=…)
	@images/release/archive.sh save

.PHONY: load
load: ## Verify and load an image that `make save` wrote (ARCHIVE=…)
	@images/release/archive.sh load

##@ Releases
.PHONY: sbom
sbom: ## Write the image's bill of materials (CycloneDX) into dist/
	@images/release/sbom.sh

.PHONY: wheel
wheel: .venv/.train ## Build the launcher's wheel in dist/, for environments that have PyTorch, and print its name
	@entrypoint/wheel.sh

.PHONY: audit
audit: .venv/.dev ## Look up known vulnerabilities of the locked packages, in a service on the internet
	@images/release/audit.sh

.PHONY: tags
tags: ## Print the tags under which this version is published
	@images/release/tags.sh

.PHONY: release-ref
release-ref: ## Print the git tag to publish: the pushed one, otherwise the newest release
	@images/release/ref.sh

.PHONY: base-digest
base-digest: ## Print the base with its digest, for BASE=… of a release
	@images/release/base_digest.sh

.PHONY: push
push: ## Push the image under its tags, and print its digest (REPOSITORY=… COMPRESSION=zstd)
	@images/release/push.sh

.PHONY: push-platform
push-platform: ## Push the image as one part of an image for several platforms (REPOSITORY=… COMPRESSION=zstd)
	@images/release/push.sh platform

.PHONY: push-joined
push-joined: ## Make one image of the parts that were pushed, under its tags, and print its digest (REPOSITORY=…)
	@images/release/push.sh join

.PHONY: push-launcher
push-launcher: ## Build the launcher's image for x86-64 and arm64, push it under its tags, and print its digest (REPOSITORY=…)
	@images/release/launcher.sh

.PHONY: published
published: ## Print, as JSON, which images a release builds and publishes
	@images/release/published.sh

##@ Measurements
.venv/.bench: locks/requirements-bench.lock bench/setup.sh .venv/.train
	@bench/setup.sh requirements-bench
	@touch $@

.venv/.peers: locks/requirements-peers.lock .venv/.bench
	@bench/setup.sh requirements-peers
	@touch $@

.PHONY: bench
bench: .venv/.peers engine image ## Run every benchmark beside its peers, on an idle machine, into bench/RESULTS.md (ARGS="--only gpt")
	@.venv/bench/bin/python bench/results.py $(ARGS)

.PHONY: bench-smoke
bench-smoke: .venv/.peers ## Run every benchmark once, briefly, without judging its times
	@.venv/bench/bin/python bench/results.py --smoke $(ARGS)

.PHONY: bench-gpu
bench-gpu: .venv/.bench ## Run the benchmarks that need a GPU, into bench/RESULTS-GPU.md
	@.venv/bench/bin/python bench/results.py --gpu $(ARGS)

##@ Work on the code
.PHONY: docs
docs: .venv/.dev ## Build docs/ as a site in build/site (ARGS=serve shows it)
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs $(or $(ARGS),build)

.PHONY: bench-rendezvous
bench-rendezvous: .venv/.dev ## Simulate on this machine how up to 256 nodes find each other: time, bytes, memory
	@.venv/bin/python bench/rendezvous.py $(ARGS)

# The others are plain PyTorch, parts of which have no types.
CHECKED_EXAMPLES := $(addprefix examples/,own_task.py own_loop.py transformers_finetune.py)
.PHONY: lint
lint: .venv/.dev .venv/.train ## Check style, types and imports: ruff, mypy, import-linter, shellcheck
	@.venv/bin/ruff check .; .venv/bin/ruff format --check .; .venv/bin/lint-imports
	@.venv/bin/mypy; .venv/bin/mypy $(CHECKED_EXAMPLES); .venv/bin/mypy slurm/unpack.py
	@.venv/bin/python -m pytest --quiet tests/unit/repository/test_house_rules.py
	@git ls-files -z '*.sh' '*.sbatch' .ci/run | xargs -0 .venv/bin/shellcheck; .venv/bin/yamllint --strict .

.PHONY: format
format: .venv/.dev ## Format the code with ruff
	@.venv/bin/ruff check --fix . ; .venv/bin/ruff format .

# uv resolves for Python 3.11 to 3.13 at once; no index host is written into the files.
# One version of each for every patch release of Python: Debian 12 has 3.11.2.
LOCK := .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest --generate-hashes --no-emit-index-url \
	--no-emit-find-links --no-header --no-annotate pyproject.toml
# No wheel of it is published, and cosmic-ray wants it for pages of HTML alone, which nobody makes here.
LEFT_OUT := --no-emit-package yattag
.PHONY: lock
lock: .venv/.dev ## Write the lock files from pyproject.toml
	$(LOCK) --extra train --extra store --extra cuda12 --output-file locks/requirements.lock
	$(LOCK) --extra bill --constraint locks/requirements.lock --output-file locks/requirements-bill.lock
	$(LOCK) --extra dev --extra bill --constraint locks/requirements.lock $(LEFT_OUT) --output-file locks/requirements-dev.lock
	$(LOCK) --extra bench --no-deps --constraint locks/requirements.lock --output-file locks/requirements-bench.lock
	$(LOCK) --extra peers --no-deps --constraint locks/requirements.lock --output-file locks/requirements-peers.lock

.PHONY: lock-image
lock-image: .venv/.dev ## Write the lock of an image with another PyTorch than .venv's (VARIANT=cpu WHEELS=…)
	@images/lock.sh

.PHONY: clean
clean: ## Remove what make made, except runs and downloaded wheels (~/.cache/slipway/wheels)
	rm -rf .venv .tmp build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
