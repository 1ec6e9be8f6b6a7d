#!/usr/bin/env bash
# Runs one family of benchmarks:  scripts/bench.sh encoder|index|mining|trainer [ARGUMENTS]
#
# A benchmark is an example named bench_FAMILY… of any crate. Those in tests/ need a server: the
# extension and the encoder program are built for them first. Peers run in the same command where
# they are installed, and what is missing is said. Results that are kept go to docs/benchmarks.md.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
use_pg
cd "$root"
family=${1:?usage: bench.sh encoder|index|mining|trainer [ARGUMENTS]}
shift
found=
for file in */examples/bench_"$family"*.rs */*/examples/bench_"$family"*.rs; do
  [ -e "$file" ] || continue
  found=yes
  crate=${file%/examples/*}
  package=$(sed -n '/^name = /{s/^name = "\(.*\)"/\1/p;q}' "$crate/Cargo.toml")
  example=$(basename "$file" .rs)
  if [ "$package" = laser-tests ]; then scripts/build.sh; fi
  say "$example"
  cargo run --locked --release -q -p "$package" --example "$example" -- "$@"
done
[ -n "$found" ] || die "there is no benchmark bench_$family"
