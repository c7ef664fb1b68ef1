# `make` without a target lists the targets. Longer scripts are in .make/, deploy/ and docs/.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: test-tables help setup env demo up down test test-long test-fast check test-bench test-browser test-airflow test-types screenshots test-faults test-interleavings test-metrics test-spark-versions test-upgrade chaos test-chaos-mutants fuzz bench test-compose test-deploy test-kubernetes release docs
BIN := .venv/bin
# What generates the data of TPC-H. Without it, the bench says what it could not measure.
TPCH := [ -x $(BIN)/tpchgen-cli ] || $(BIN)/python -m pip install --quiet --constraint constraints.txt --group tpch || true

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Create the environment in .venv, and install Java and python3-venv if they are missing
	@.make/setup

env: ## Write .env for docker-compose.yml, and generate missing passwords
	@.make/env

demo: setup ## Run the flights pipeline on a temporary stack and show the result
	@$(BIN)/paceline demo

up: setup ## Start the embedded stack with its web process and Flower, and leave it running
	@.make/stack up

down: ## Stop the stack that `make up` started
	@.make/stack down

test: setup ## Run the tests, four at a time, with real PostgreSQL, Redis, Celery and Spark; ARGS="-k name" selects
	@.make/test $(ARGS)

test-long: setup ## Run the tests that `make test` leaves out, because each takes long; ARGS="-k name" selects
	@.make/test long $(ARGS)

test-fast: setup ## Run the tests that need no server, in less than a minute; ARGS="-k name" selects
	@$(BIN)/python -m pytest -n 2 --dist worksteal tests/unit $(ARGS)

check: setup ## Check format, lint, types, import layers, spelling, the repository (tools/), generated files and known vulnerabilities
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/codespell
	@$(BIN)/python -m tools
	@$(BIN)/python -m docs.generate --check
	@$(BIN)/python web/build.py check
	@$(BIN)/python deploy/vulnerabilities

test-tables: setup ## Strike tasks that write tables at every point, compare 10,000 writes with their serial order, run Iceberg's tests and Flink: hours; QUICK=1: minutes
	@QUICK=$(QUICK) .make/test-tables $(ARGS)

test-faults: setup ## Kill processes at every fault point under 200 runs each, stop some for a minute, drop messages
	@FAULT_TESTS=full $(BIN)/python -m pytest -m "" -s \
		$(addprefix tests/acceptance/test_,fault_points.py deploys_under_load.py stopped.py lost_messages.py database_restarts.py rescue_speed.py half_open.py flights_survive.py flights_deployed.py) \
		tests/integration/services/test_same_states.py tests/integration/store/actions/test_actions_stateful.py \
		$(addprefix tests/integration/workers/spark/test_,frames.py spark.py spark_archive.py spark_endings.py spark_session.py spark_submit.py)

test-interleavings: setup ## Overlap each statement that waits for a lock with each change, and find mutants; ARGS="-k claim" selects
	@$(BIN)/python -m pytest -m "" -n 2 tests/integration/interleavings $(ARGS)

test-bench: setup ## Run every benchmark at a small size, and check counts and states
	@$(TPCH)
	@$(BIN)/python -m pytest -m "" tests/acceptance/test_bench.py

test-browser: setup ## Use the web UI in a real browser, on a real stack; ARGS="-k name" selects
	@.make/browser -m pytest tests/browser $(ARGS)

test-airflow: setup ## Compare Paceline with Apache Airflow, installed beside it once, or in TEST_AIRFLOW=folder; ARGS="-k name" selects
	@AIRFLOW_TESTS=1 $(BIN)/python -m pytest tests/differential $(ARGS)

test-metrics: setup ## Check metrics, traces, lineage and log copies with a real Prometheus, StatsD, collector and S3 server
	@.make/metrics $(ARGS)

test-upgrade: setup ## Upgrade from the previous release under load, process by process, and go back; UPGRADE_FROM=commit
	@$(BIN)/python -m pytest -m "on_demand or not on_demand" tests/acceptance/test_upgrade.py tests/acceptance/test_migration_locks.py $(ARGS)

test-spark-versions: setup ## Run the tests of PySpark tasks with PySpark 3.5, 4.0 and 4.3, and with pandas 3; VERSIONS="3.5", ARGS="-k name"
	@.make/spark-versions $(ARGS)

test-types: setup ## Check examples and mistakes of DAG authors with mypy and pyright in strict mode; ARGS="-k name" selects
	@TYPE_TESTS=1 $(BIN)/python -m pytest tests/types $(ARGS)

screenshots: setup ## Render every page to build/screenshots: light, dark and narrow; ARGS=readme renders the pictures of the README
	@.make/browser -m browser.screenshots $(ARGS)

test-deploy: setup ## Check the chart, the kustomize folders, the unit files and the wheel; ARGS="-k chart" selects
	@.make/deploy -m pytest -n 2 --dist loadgroup tests/deploy $(ARGS)

chaos: setup ## Inject faults for ten minutes and judge the result; prints one JSON line; SEED=3, ARGS="--minutes 2 --quick --keep"
	@PYTHONPATH=tests $(BIN)/python -m chaos $(if $(SEED),--seed $(SEED)) $(ARGS)

test-chaos-mutants: setup ## Break Paceline in over 20 ways, one at a time; a short chaos run must detect each; ARGS="name" selects
	@PYTHONPATH=tests $(BIN)/python -m chaos.run_mutants $(ARGS)

fuzz: setup ## Try over 10,000 hostile IDs, messages, answers, DAG files, Redis keys, settings and arguments; SEED=3; prints one JSON line
	@PYTHONPATH=tests $(BIN)/python -m fuzz $(if $(SEED),--seed $(SEED)) $(ARGS)

bench: setup ## Measure Paceline beside plain Celery and PostgreSQL; prints one JSON line; ARGS="chain wide --iterations 5" selects
	@$(TPCH)
	@$(BIN)/python -m bench $(ARGS)

test-kubernetes: setup ## Start a Kubernetes cluster on this machine; install the chart, run flights, deploy, kill, drain, upgrade, scale; ARGS="chart drain"
	@.make/deploy tests/kubernetes/run.py $(ARGS)

release: setup ## Set the version, close the changelog, commit, tag, and build wheel and sdist; VERSION=1.2.3
	@.venv/bin/python -c 'import build.__main__' 2>/dev/null || .venv/bin/python -m pip install --quiet --constraint constraints.txt --group deploy
	@.venv/bin/python deploy/release $(VERSION)

docs: setup ## Build the documentation site into build/docs; a broken link is an error
	@docs/make

test-compose: ## Build the image, run the stack of docker-compose.yml, check a flights run, and scale and kill workers; ARGS="autoscale"
	@python3 tests/compose/run.py $(ARGS)
