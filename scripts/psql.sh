#!/usr/bin/env bash
# psql on the demo's server: one statement from $SQL (rows as lines, columns separated by |), or
# interactive; more arguments go to psql.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
home=$target/demo
[ -e "$home/socket" ] || die "there is no demo server: make demo"
connect=("$(cat "$home/bin")/psql" -X -h "$(cat "$home/socket")" -p 5432 -U postgres -d "${PGDATABASE:-demo}")
if [ -n "${SQL:-}" ]; then
  exec "${connect[@]}" -q -At -v ON_ERROR_STOP=1 -c "$SQL"
fi
exec "${connect[@]}" "$@"
