#!/bin/sh
# Makes .venv with exactly what requirements/ locks. Does nothing if it did so before for the same locks.
set -eu
cd "$(dirname "$0")/.."

locks=$(cat requirements/build.txt requirements/lock.txt | cksum)
stamp=.venv/.locks
if [ "$(cat "$stamp" 2>/dev/null || true)" = "$locks" ] && .venv/bin/python -c '' 2>/dev/null; then
    exit 0
fi

python=$(sh scripts/find_python.sh)
echo "Setting up .venv with $("$python" --version) ($python): a minute or two, once."
"$python" -m venv --clear .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }
pip install --quiet --require-hashes -r requirements/build.txt
pip install --quiet --require-hashes --no-deps --no-build-isolation -r requirements/lock.txt
echo "$locks" >"$stamp"
