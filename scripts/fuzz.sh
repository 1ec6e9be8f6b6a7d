#!/usr/bin/env bash
# Fuzzing with AddressSanitizer: scripts/fuzz.sh [TARGET] [SECONDS]
#
#   scripts/fuzz.sh                every target for a minute
#   scripts/fuzz.sh segment 3600   one target for an hour
#   scripts/fuzz.sh list           the targets
#   scripts/fuzz.sh seeds          makes the seeds in fuzz/corpus again, after a format has changed
#   scripts/fuzz.sh repeat TARGET FILE   one input, for example one that was found
#
# Needs nothing but the stable compiler and a C++ compiler: cargo-fuzz is installed below target/, and
# RUSTC_BOOTSTRAP=1 lets the stable compiler take the flags of sanitizers. What is found lies in
# target/fuzz/artifacts, what coverage has grown by in target/fuzz/corpus.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
for folder in "${HOME:-/root}/.cargo/bin" /usr/local/cargo/bin; do
  command -v cargo >/dev/null || PATH=$folder:$PATH
done

tools=$target/tools
PATH=$tools/bin:$PATH
if ! command -v cargo-fuzz >/dev/null; then
  say "installing cargo-fuzz below $tools"
  cargo install cargo-fuzz --version 0.13.2 --locked --root "$tools" --target-dir "$tools/build"
fi

# usearch is C++, and what a hostile segment does to it must show as well. The objects of GCC and of
# clang both work with the runtime that comes with rustc.
export CXXFLAGS="${CXXFLAGS:-} -fsanitize=address"
export RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$target/fuzz

core="pages metapage segment index frames type_input"
encoder="config tokenizer model sentencepiece checkpoint import"
targets=$(printf '%s\n' $core $encoder)
# Without the encoder, most dependencies need not be compiled.
build_flags() { case " $core " in *" $1 "*) echo --no-default-features ;; esac; }
built() { echo "$CARGO_TARGET_DIR/$(rustc -vV | sed -n 's/^host: //p')/release/$1"; }

# Files of a run, in memory where possible: most targets write one for every input.
if [ -d /dev/shm ] && [ -w /dev/shm ]; then
  TMPDIR=$(mktemp -d /dev/shm/laser-fuzz.XXXXXX)
else
  TMPDIR=$(mktemp -d)
fi
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

# run TARGET SECONDS. More than 256 MB in one allocation, or 2 GB in all, is a finding: no input is
# larger than a few kilobytes.
run() {
  local grown=$CARGO_TARGET_DIR/corpus/$1 found=$CARGO_TARGET_DIR/artifacts/$1
  mkdir -p "$grown" "$found"
  cargo fuzz run --fuzz-dir fuzz $(build_flags "$1") "$1" "$grown" "fuzz/corpus/$1" -- -max_total_time="$2" -print_final_stats=1 \
    -rss_limit_mb=2048 -malloc_limit_mb=256 -timeout=20 -artifact_prefix="$found/" "${@:3}"
}

case ${1:-all} in
  list)
    echo "$targets"
    ;;
  seeds)
    say "building the program that makes them"
    cargo fuzz build --fuzz-dir fuzz seeds
    rm -f fuzz/corpus/*/seed-*
    ASAN_OPTIONS=detect_leaks=0 "$(built seeds)" fuzz/corpus encoder/tests/fixtures
    du -sh fuzz/corpus
    ;;
  repeat)
    [ $# -eq 3 ] || die "scripts/fuzz.sh repeat TARGET FILE"
    cargo fuzz run --fuzz-dir fuzz $(build_flags "$2") "$2" "$3" -- -rss_limit_mb=2048 -malloc_limit_mb=256 -timeout=20
    ;;
  all)
    for name in $targets; do
      say "$name"
      run "$name" "${2:-60}"
    done
    ;;
  *)
    grep -qx "$1" <<<"$targets" || die "there is no target $1; there are: ${targets//$'\n'/ }"
    run "$1" "${2:-60}" "${@:3}"
    ;;
esac
