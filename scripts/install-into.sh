#!/usr/bin/env bash
# Installs the built extension into the PostgreSQL of PG_CONFIG, as root where that is needed.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
use_pg
if [ -w "$("$PG_CONFIG" --pkglibdir)" ] && [ -w "$("$PG_CONFIG" --sharedir)/extension" ]; then
  "$root/scripts/install.sh" "$PG_CONFIG"
else
  as_root env CARGO_TARGET_DIR="$target" "$root/scripts/install.sh" "$PG_CONFIG"
fi
cat <<'END'
In a database:          CREATE EXTENSION laser;
To have the encoder start with the server, and for the index's caches to be shared at once, add to
postgresql.conf and restart:
                        shared_preload_libraries = 'laser'
END
