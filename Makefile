# Everything happens in this checkout: .venv (Python packages), .demo (data, jars, Airflow's home), dist (the wheel),
# build (the site of the documents).
# Settings: KEEP=1 leaves the demo's UI up; OLDER=1 has it by the oldest Airflow and Spark, and a Hive Metastore;
# PYTHON=..., JAVA_HOME=... choose the interpreter and the Java.
SHELL := /bin/sh
BIN := .venv/bin

.PHONY: demo demo-streams demo-database ui docs check test test-all soak benchmarks install lint lock clean

demo:
	@sh scripts/find_java.sh >/dev/null
	@$(MAKE) --no-print-directory install
	@test -z "$(OLDER)" || sh scripts/venv_of.sh airflow-3.1 spark-3.5
	@JAVA_HOME="$$(sh scripts/find_java.sh)" KEEP="$(KEEP)" OLDER="$(OLDER)" $(BIN)/python -m demo

# From Kafka to Kafka, PostgreSQL and files, with each server killed once. ARGS="--barriers 4 --kill": shorter, no kills.
demo-streams:
	@sh scripts/find_java.sh >/dev/null
	@$(MAKE) --no-print-directory install
	@JAVA_HOME="$$(sh scripts/find_java.sh)" KEEP="$(KEEP)" $(BIN)/python -m demo.streams $(ARGS)

# From a PostgreSQL to the lake and another PostgreSQL, with both and a task killed. ARGS: as above.
demo-database:
	@sh scripts/find_java.sh >/dev/null
	@$(MAKE) --no-print-directory install
	@JAVA_HOME="$$(sh scripts/find_java.sh)" KEEP="$(KEEP)" $(BIN)/python -m demo.database $(ARGS)

# The page in Airflow's UI, from ui/ into airflow_barrier/plugins/static; needs node and npm.
ui:
	@sh scripts/ui.sh

# The site of docs/, into build/site: open build/site/index.html, or put the folder on any web server.
docs:
	@sh scripts/venv.sh
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# While writing: lint, and all tests that need no server and take no minutes (tests/support/checking.py).
check: lint
	@sh scripts/find_java.sh >/dev/null
	@$(MAKE) --no-print-directory install
	@JAVA_HOME="$$(sh scripts/find_java.sh)" $(BIN)/pytest -n 2 --check $(ARGS)

# A landing: what the changed files are about, and a tenth of the rest, drawn by the commit (tests/support/drawing.py).
# After 75 minutes it ends and says what failed: CI would end it without a word after 90, with the installation.
test: LANDING := --landing -o ends_after=4500
# Everything, once.
test test-all:
	@sh scripts/find_java.sh >/dev/null
	@$(MAKE) --no-print-directory install
	$(BIN)/python -m pip check
	@$(MAKE) --no-print-directory lint
	@JAVA_HOME="$$(sh scripts/find_java.sh)" $(BIN)/pytest -n 3 $(LANDING) $(ARGS)

# Schedules of the model (tests/model) on all cores: as many as MINUTES allow, from the first SEED on.
MINUTES ?= 10
SEED ?= 1
soak: install
	@$(BIN)/python -m tests.model.soak --minutes $(MINUTES) --first $(SEED) $(ARGS)

# The figures of docs/benchmarks.md, all or those that ARGS names; with --write in ARGS they are written there
# and into README. Half an hour and more.
benchmarks:
	@sh scripts/find_java.sh >/dev/null
	@$(MAKE) --no-print-directory install
	@JAVA_HOME="$$(sh scripts/find_java.sh)" $(BIN)/python -m benchmarks $(ARGS)

install:
	@sh scripts/venv.sh
	@sh scripts/wheel.sh

lint:
	@sh scripts/venv.sh
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

lock:
	@sh scripts/venv.sh
	@sh scripts/lock.sh

clean:
	rm -rf .venv .venv-* .demo dist build .mypy_cache .ruff_cache .hypothesis
