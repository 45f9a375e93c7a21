#!/bin/sh
# Builds the RocksDB oracle: usage build.sh [DIR]. DIR is $SLUICE_ROCKS_ORACLE, else rocks-oracle in the user's cache
# directory; tests and benchmarks look there. Needs mvn and a JDK (17 or later); downloads frocksdbjni (41 MB) once.
# Prints the directory. Run it with:  java -cp 'DIR/classes:DIR/lib/*' Oracle
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:-${SLUICE_ROCKS_ORACLE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/rocks-oracle}}
for tool in mvn javac java; do
  command -v "$tool" >/dev/null || { echo "build.sh: $tool is not installed" >&2; exit 2; }
done
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
source=$here/src/main/java/Oracle.java
stamp=$(cat "$here/pom.xml" "$source" | sha256sum | cut -d' ' -f1)
if [ "$(cat "$dir/stamp" 2>/dev/null || true)" != "$stamp" ]; then
  rm -rf "$dir/lib" "$dir/classes" "$dir/stamp"
  mkdir -p "$dir/classes"
  mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$dir/lib" >&2
  javac -nowarn -cp "$dir/lib/*" -d "$dir/classes" "$source"
  echo "$stamp" >"$dir/stamp"
fi
echo "$dir"
