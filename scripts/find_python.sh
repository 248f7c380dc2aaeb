#!/bin/sh
# Prints the path of a Python that Airflow supports and that can make virtual environments.
# PYTHON=/path/to/python decides, if set.
set -eu

fits() {
    # pyenv puts names on PATH that fail when called, so only a run tells.
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' >/dev/null 2>&1
}

for name in ${PYTHON:-python3.11 python3.12 python3.13 python3.10 python3 python /usr/bin/python3}; do
    if fits "$name"; then
        exec "$name" -c 'import sys; print(sys.executable)'
    fi
done
if [ -n "${PYTHON:-}" ]; then
    echo "PYTHON=$PYTHON is not a Python 3.10 to 3.13 with the venv module: set PYTHON to one, or unset it." >&2
else
    echo "No Python 3.10 to 3.13 with the venv module was found on PATH: install one (Debian, Ubuntu: apt-get install python3 python3-venv) or set PYTHON=/path/to/python." >&2
fi
exit 1
