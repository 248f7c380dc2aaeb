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
compile pyproject.toml --extra spark --extra iceberg --extra postgres --extra s3 --extra hive --extra glue --extra kafka --extra pravega --extra reading --extra duckdb --extra openlineage --extra demo --extra dev --group docs -o requirements/lock.txt
# The same for users, whose pip takes it as `--constraint`: what tests ran with.
sed -n 's/ *\\$//; /^[A-Za-z0-9]/p' requirements/lock.txt >requirements/constraints.txt

# Other versions of Spark and Airflow that tests run on: what differs from the lock, in an environment that has the lock already.
part=$(mktemp -d)
trap 'rm -rf "$part"' EXIT
for version in 3.5 4.0; do
    echo "pyspark==$version.*" | compile --no-deps - -o "requirements/spark-$version.txt"
done
for version in 3.1 3.2; do
    echo "apache-airflow==$version.*" >"$part/pin"
    cp requirements/constraints.txt "$part/all"  # of these uv keeps what fits
    .venv/bin/uv pip compile --quiet --universal --python-version 3.10 --no-emit-index-url --no-header --no-annotate \
        --all-extras --constraint "$part/pin" pyproject.toml -o "$part/all"
    grep -vxFf requirements/constraints.txt "$part/all" >"$part/differing"
    .venv/bin/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-emit-index-url \
        --no-header --no-annotate --no-deps "$part/differing" -o "requirements/airflow-$version.txt"
done
