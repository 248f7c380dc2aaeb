#!/bin/sh
# Builds the guard's jar, which is in git beside what it was built from, from guard/, against the Spark in .venv. Does
# nothing if it was built from the same sources. With an argument: builds it there, whatever is in git.
set -eu
cd "$(dirname "$0")/.."

jar=${1:-airflow_barrier/spark/jars/airflow-barrier-guard.jar}
stamp=guard/built-from
sources=$(find guard -type f ! -path "$stamp" | LC_ALL=C sort | xargs cksum | cksum)
if [ $# = 0 ] && [ -f "$jar" ] && [ "$(cat "$stamp" 2>/dev/null || true)" = "$sources" ]; then
    exit 0
fi

javac=${JAVA_HOME:+$JAVA_HOME/bin/javac}
[ -x "$javac" ] || javac=$(command -v javac || true)
if [ -z "$javac" ]; then
    echo "Building the guard needs a Java compiler, 17 or newer, and none was found: install one (Debian, Ubuntu: apt-get install openjdk-17-jdk-headless) or set JAVA_HOME to a JDK." >&2
    exit 1
fi
spark=$(.venv/bin/python -c 'import importlib.util as u; print(u.find_spec("pyspark").submodule_search_locations[0])')
classes=$(mktemp -d)
trap 'rm -rf "$classes"' EXIT
"$javac" --release 17 -Xlint:all,-classfile,-path -Werror -cp "$spark/jars/*" -d "$classes" guard/src/airflow_barrier/guard/*.java
cp -R guard/META-INF "$classes"
mkdir -p "$(dirname "$jar")"
# a jar is a zip; Python's needs no JDK tool, and the same classes give the same bytes
.venv/bin/python - "$classes" "$jar" <<'PYTHON'
import os, sys, zipfile
from pathlib import Path

classes, jar = Path(sys.argv[1]), Path(sys.argv[2])
part = jar.with_suffix(".part")
with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
    for file in sorted(path for path in classes.rglob("*") if path.is_file()):
        archive.writestr(zipfile.ZipInfo(file.relative_to(classes).as_posix(), (1980, 1, 1, 0, 0, 0)), file.read_bytes())
os.replace(part, jar)
PYTHON
[ $# != 0 ] || echo "$sources" >"$stamp"
