#!/bin/sh
# Prints the JAVA_HOME of a Java on which Spark 4.1 runs: 17 to 23. From Java 24 on, Hadoop 3.4.2, which this Spark
# ships, fails at start with "getSubject is not supported". JAVA_HOME comes first, then PATH, then the usual folders.
set -eu

major() {
    "$1" -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java\.specification\.version = //p'
}

home_of() {
    "$1" -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java\.home = //p'
}

found=""
on_path=$(command -v java || true)
for java in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} ${on_path:+"$on_path"} \
    /usr/lib/jvm/*/bin/java /opt/java/*/bin/java /Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java; do
    [ -x "$java" ] || continue
    version=$(major "$java")
    case "$version" in
        17 | 18 | 19 | 20 | 21 | 22 | 23)
            home_of "$java"
            exit 0
            ;;
        *) found="${found:+$found, }Java ${version:-of unknown version} at $java" ;;
    esac
done
echo "Spark 4.1 needs Java 17 to 23, and ${found:-no Java} was found: install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME to one." >&2
exit 1
