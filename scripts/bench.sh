#!/usr/bin/env bash
# Runs one family of benchmarks:  scripts/bench.sh FAMILY [ARGUMENTS]
#
# A benchmark is an example named bench_FAMILY… of any crate; CONTRIBUTING.md lists the families. Peers run
# in the same command where they are installed, and what is missing is said.
# Results that are kept go to docs/benchmarks.md.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
use_pg
cd "$root"
family=${1:?usage: bench.sh FAMILY [ARGUMENTS]}
shift
examples=()
for file in {*,*/*}/examples/bench_"$family"*{.rs,/main.rs}; do
  [ ! -e "$file" ] || examples+=("$(basename "${file%/main.rs}" .rs)")
done
[ ${#examples[@]} -gt 0 ] || die "there is no benchmark bench_$family"

# The extension and the encoder program are built along, for benchmarks that need a server, and with
# the features that make test uses, so that nothing is compiled twice. CARGO_FLAGS are for the
# benchmarks of the family's own crate; the library of the extension must not ask for CUDA.
flags=()
for example in "${examples[@]}"; do flags+=(--example "$example"); done
cargo build --locked --release --workspace --lib --bins "${flags[@]}" "${features[@]}"
if [ -n "${CARGO_FLAGS:-}" ]; then
  # shellcheck disable=SC2086
  cargo build --locked --release -p "laser-$family" --examples $CARGO_FLAGS
fi
for example in "${examples[@]}"; do
  say "$example $*"
  "$target/release/examples/$example" "$@"
done
