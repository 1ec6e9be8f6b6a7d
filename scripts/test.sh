#!/usr/bin/env bash
# Builds everything and runs every test; arguments go to cargo test (--test NAME, …).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
use_pg
cd "$root"
# One command builds libraries, programs and tests with one set of features, so that cargo test
# finds everything done: the extension is no dependency of the tests, they load it into a server.
say "building the workspace and its tests"
cargo build --locked --release --workspace --lib --bins --tests "${features[@]}"
say "running the tests"
cargo test --locked --release --workspace "${features[@]}" --no-fail-fast "$@"
