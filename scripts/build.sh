#!/usr/bin/env bash
# Builds the extension and the encoder program in release mode for one PostgreSQL.
#
#   [PG_CONFIG=…] [CARGO_FLAGS=…] scripts/build.sh
#
# CARGO_FLAGS="--features laser-encoder/cuda" makes an encoder program that can use a GPU. The library
# is built without: it holds the encoder for cheap models and must not ask for CUDA's libraries.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
use_pg
cd "$root"
cargo build --locked --release -p laser -p laser-encoder "${features[@]}"
if [ -n "${CARGO_FLAGS:-}" ]; then
  # shellcheck disable=SC2086
  cargo build --locked --release -p laser-encoder --bin laser-encoder --features jieba,mecab $CARGO_FLAGS
fi
