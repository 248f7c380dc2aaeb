#!/bin/sh
# Builds the wheel and installs it into .venv. Does nothing if the sources are those of the installed wheel.
set -eu
cd "$(dirname "$0")/.."

sh scripts/guard.sh
sources=$(find airflow_barrier pyproject.toml README.md LICENSE -type f ! -name '*.pyc' | LC_ALL=C sort | xargs cksum | cksum)
stamp=.venv/.wheel
if [ "$(cat "$stamp" 2>/dev/null || true)" = "$sources" ]; then
    exit 0
fi

rm -f "$stamp"
rm -rf dist
.venv/bin/python -m hatchling build -t wheel
.venv/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --force-reinstall dist/*.whl
echo "$sources" >"$stamp"
