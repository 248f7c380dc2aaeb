#!/bin/sh
# Makes .venv-NAME, with another Airflow or Spark than .venv has, or both (.venv-NAME-NAME): those of requirements/NAME.txt.
# The installed wheel is that of .venv. sh scripts/venv_of.sh airflow-3.1 [spark-3.5]
set -eu
cd "$(dirname "$0")/.."

: "${1:?expected names of files in requirements, such as airflow-3.1}"
venv=.venv
for name in "$@"; do venv=$venv-$name; done
stamp=$venv/.locks
locks="$(cat .venv/.locks .venv/.wheel) $(for name in "$@"; do cksum <"requirements/$name.txt"; done)"
[ "$(cat "$stamp" 2>/dev/null || true)" = "$locks" ] && exit 0

echo "Setting up $venv from .venv: some seconds."
rm -rf "$venv"
.venv/bin/python -m venv --without-pip "$venv"
# links to the same files: pip replaces files, and changes none
cp -Rlf .venv/lib/. "$venv/lib"
for script in .venv/bin/*; do
    [ -h "$script" ] || [ -d "$script" ] || [ -e "$venv/bin/${script##*/}" ] ||
        { sed "1s|/\.venv/bin/|/$venv/bin/|" "$script" >"$venv/bin/${script##*/}"; chmod +x "$venv/bin/${script##*/}"; }
done
for name in "$@"; do
    "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --require-hashes --no-deps -r "requirements/$name.txt"
done
echo "$locks" >"$stamp"
