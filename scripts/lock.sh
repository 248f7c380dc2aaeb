#!/bin/sh
# Resolves the ranges of pyproject.toml anew, for all supported Pythons at once, into requirements/.
set -eu
cd "$(dirname "$0")/.."

.venv/bin/python -m pip --disable-pip-version-check install --quiet "uv>=0.9"
compile() {
    .venv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.10 \
        --generate-hashes --no-emit-index-url --no-header --no-annotate "$@"
}
compile requirements/build.in -o requirements/build.txt
compile pyproject.toml --extra spark --extra iceberg --extra postgres --extra s3 --extra kafka --extra pravega --extra reading --extra duckdb --extra openlineage --extra demo --extra dev --group docs -o requirements/lock.txt
# The same for users, whose pip takes it as `--constraint`: what tests ran with.
sed -n 's/ *\\$//; /^[A-Za-z0-9]/p' requirements/lock.txt >requirements/constraints.txt
