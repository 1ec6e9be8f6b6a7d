#!/usr/bin/env bash
# The tests of the crates below the extension with AddressSanitizer: scripts/asan.sh [CRATE…]
#
# RUSTC_BOOTSTRAP=1 lets the stable compiler take the flag. The standard library is as it comes, without
# instrumentation: an access beyond the end of memory is seen where code of a crate, inlined code of
# std or usearch makes it. Overflow checks and debug assertions are on.
#
# Not here: laser itself, whose code runs in a server that would have to be built with the sanitizer
# as well; laser-trainer, which reads no hostile bytes.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
for folder in "${HOME:-/root}/.cargo/bin" /usr/local/cargo/bin; do
  command -v cargo >/dev/null || PATH=$folder:$PATH
done

crates=("$@")
[ ${#crates[@]} -gt 0 ] || crates=(laser-vector laser-protocol laser-index laser-mining laser-kernels laser-model laser-import laser-encoder)

host=$(rustc -vV | sed -n 's/^host: //p')
export RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$target/asan
export RUSTFLAGS="-Zsanitizer=address" CXXFLAGS="${CXXFLAGS:-} -fsanitize=address"
export CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true

# The kernels that come with usearch, which computes distances with laser's instead, would take most of an hour of
# compilation with the sanitizer: they are compiled without.
mkdir -p "$CARGO_TARGET_DIR"
cat > "$CARGO_TARGET_DIR/cc" <<'EOF'
#!/bin/sh
case " $* " in
*" c/dispatch_"*)
  for argument do
    shift
    [ "$argument" = -fsanitize=address ] || set -- "$@" "$argument"
  done
  ;;
esac
exec cc "$@"
EOF
chmod +x "$CARGO_TARGET_DIR/cc"
export CC=$CARGO_TARGET_DIR/cc

for crate in "${crates[@]}"; do
  say "$crate"
  # --target keeps the flags away from build scripts and macros. Documentation tests are compiled
  # without them and do not link.
  cargo test --locked --release --target "$host" -p "$crate" --lib --bins --tests
done
