#!/usr/bin/env bash
# Builds everything and runs every test; arguments go to cargo test (--test NAME, …). At the end it says
# which tests could not run here, and why.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
use_pg
cd "$root"
# One command builds libraries, programs and tests with one set of features, so that cargo test
# finds everything done: the extension is no dependency of the tests, they load it into a server.
say "building the workspace and its tests"
cargo build --locked --release --workspace --lib --bins --tests "${features[@]}"
# Tests that are skipped add a line (tests/src/skipped.rs).
LASER_SKIPPED=$(mktemp)
export LASER_SKIPPED
trap 'rm -f "$LASER_SKIPPED"' EXIT
say "running the tests"
passed=0
cargo test --locked --release --workspace "${features[@]}" --no-fail-fast "$@" || passed=$?
if [ -s "$LASER_SKIPPED" ]; then
  sort -u "$LASER_SKIPPED" >&2
  say "skipped, as listed above: $(sort -u "$LASER_SKIPPED" | wc -l)"
else
  say "no test was skipped"
fi
exit "$passed"
