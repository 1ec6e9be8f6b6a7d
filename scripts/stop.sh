#!/usr/bin/env bash
# Stops the demo's server. Its data stays; `make demo` starts it again.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
home=$target/demo
if [ -e "$home/data/postmaster.pid" ]; then
  as_server "$(cat "$home/bin")/pg_ctl" stop -D "$(readlink -f "$home")/data" -m fast -w >&2
else
  say "the demo's server does not run"
fi
