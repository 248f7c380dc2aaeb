#!/bin/sh
# Installs what ui/package-lock.json locks, checks the page's types and builds it into airflow_barrier/plugins/static.
# With --check: fails if what is committed is not what its sources build to.
set -eu
cd "$(dirname "$0")/../ui"

bundle=../airflow_barrier/plugins/static/barriers.js
# neither needs scripts of packages to be run, nor anything from the network but the packages
npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
npm run --silent check
if [ "${1:-}" != --check ]; then
    npm run --silent build
    exit 0
fi
built=$(mktemp)
trap 'rm -f "$built"' EXIT
node build.mjs "$built"
cmp -s "$built" "$bundle" || {
    echo "expected airflow_barrier/plugins/static/barriers.js to be what ui/ builds to, found another; run make ui and commit it" >&2
    exit 1
}
