#!/usr/bin/env bash
# Formatting, clippy without warnings, and no build output in the repository.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
use_pg
cd "$root"

say "cargo fmt --check"
cargo fmt --all --check
cargo fmt --manifest-path fuzz/Cargo.toml --check

say "no build output is committed"
git="git -c safe.directory=*"
if $git rev-parse --git-dir >/dev/null 2>&1; then
  bad=$($git ls-files | grep -E '(^|/)(target|node_modules|__pycache__)/|\.(o|so|a|rlib|rmeta|pyc|orig|rej)$' || true)
  [ -z "$bad" ] || die "build output is committed: $bad"
  $git ls-files -z | while IFS= read -r -d '' file; do
    [ -f "$file" ] || continue
    if [ "$(head -c 4 "$file" | tr -d '\0')" = $'\x7fELF' ]; then
      die "a compiled program is committed: $file"
    fi
  done
fi

say "the scripts parse"
for script in scripts/*.sh .ci/run; do bash -n "$script"; done

if command -v typos >/dev/null; then
  say "typos"
  typos
fi

if command -v cargo-machete >/dev/null; then
  say "cargo machete"
  cargo machete --skip-target-dir
fi

say "cargo clippy"
cargo clippy --locked --release --workspace --all-targets "${features[@]}" -- -D warnings

# They are run by hand and for hours, and had stopped to compile more than once.
say "the fuzz targets compile"
CARGO_TARGET_DIR=$target/fuzz-check cargo check --locked --manifest-path fuzz/Cargo.toml --bins
