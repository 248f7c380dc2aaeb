# Everything happens in this checkout: .venv (Python packages), .demo (data, jars, Airflow's home), dist (the wheel).
# Settings: KEEP=1 leaves the demo's UI up; PYTHON=..., JAVA_HOME=... choose the interpreter and the Java.
SHELL := /bin/sh
BIN := .venv/bin

.PHONY: demo test lint lock dev clean

demo:
	@java=$$(sh scripts/find_java.sh) && sh scripts/venv.sh && sh scripts/wheel.sh && \
		JAVA_HOME="$$java" KEEP="$(KEEP)" $(BIN)/python -m demo

test:
	@sh scripts/find_java.sh >/dev/null
	@sh scripts/venv.sh
	@sh scripts/wheel.sh
	$(BIN)/python -m pip check
	@$(MAKE) --no-print-directory lint
	@JAVA_HOME="$$(sh scripts/find_java.sh)" $(BIN)/pytest $(ARGS)

lint:
	@sh scripts/venv.sh
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

lock:
	@sh scripts/venv.sh
	@sh scripts/lock.sh

# For a quick round while writing: the checkout itself is what Python imports, until the next `make test` or `make demo`.
dev:
	@sh scripts/venv.sh
	@rm -f .venv/.wheel
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation --editable .

clean:
	rm -rf .venv .demo dist .mypy_cache .ruff_cache
