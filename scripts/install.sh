#!/usr/bin/env bash
# Installs the built extension, the encoder program and the shipped models for one PostgreSQL.
#
#   [DESTDIR=…] [CARGO_TARGET_DIR=…] scripts/install.sh [PG_CONFIG]
#
# Every file is written beside its destination and renamed over it: a running server keeps the
# library that it has mapped.
set -euo pipefail
pg_config=${1:-${PG_CONFIG:-pg_config}}
root=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}/release
dest=${DESTDIR:-}
lib=$dest$("$pg_config" --pkglibdir)
share=$dest$("$pg_config" --sharedir)
version=$(sed -n "s/^default_version *= *'\(.*\)'/\1/p" "$root/extension/laser.control")

put() { # put MODE SOURCE DESTINATION
  mkdir -p "$(dirname "$3")"
  install -m "$1" "$2" "$3.new.$$"
  # Line tables stay in the build folder; symbols go along.
  if [ "$1" = 755 ]; then strip --strip-debug "$3.new.$$" 2>/dev/null || true; fi
  mv -f "$3.new.$$" "$3"
}

put 755 "$target/liblaser.so" "$lib/laser.so"
put 755 "$target/laser-encoder" "$lib/laser-encoder"

sql=$(mktemp)
trap 'rm -f "$sql"' EXIT
extension() { # extension NAME PART…: its control file and its script, which consists of these parts
  local name=$1 part
  shift
  echo "\\echo Use \"CREATE EXTENSION $name\" to load this file. \\quit" >"$sql"
  for part in "$@"; do cat "$root/sql/$part.sql" >>"$sql"; done
  put 644 "$sql" "$share/extension/$name--$version.sql"
  put 644 "$root/extension/$name.control" "$share/extension/$name.control"
}
extension laser types encode index mining hybrid keep
extension laser_pgvector laser_pgvector
for script in "$root"/sql/upgrade/laser*--*.sql; do
  put 644 "$script" "$share/extension/$(basename "$script")"
done

for model in "$root"/encoder/models/*/; do
  [ -e "$model/config.json" ] || continue
  name=$(basename "$model")
  for file in "$model"*; do
    put 644 "$file" "$share/laser/models/$name/$(basename "$file")"
  done
done
echo "laser $version installed in $lib and $share"
