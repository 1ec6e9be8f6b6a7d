#!/usr/bin/env bash
# Installs what the build needs and the machine lacks, on Debian and Ubuntu: a PostgreSQL server
# with its headers, libclang, a C++ compiler, make, pkg-config. Does nothing when all is there.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

packages=()
for pair in g++:g++ make:make pkg-config:pkg-config clang:clang setpriv:util-linux; do
  command -v "${pair%%:*}" >/dev/null || packages+=("${pair#*:}")
done
# bindgen loads libclang at run time.
[ -n "${LIBCLANG_PATH:-}" ] ||
  compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null ||
  compgen -G '/usr/lib*/libclang*.so*' >/dev/null ||
  compgen -G '/usr/lib/*/libclang*.so*' >/dev/null || packages+=(libclang-dev)
# Without its own headers a compiler is of no use to bindgen.
[ -e /usr/include/stdio.h ] || packages+=(libc6-dev)

install() {
  command -v apt-get >/dev/null ||
    die "please install by hand (only apt is handled here): $*"
  say "installing with apt: $*"
  if [ -z "${apt_updated:-}" ]; then
    as_root apt-get update -qq || say "apt-get update failed; trying with the lists that are there"
    apt_updated=yes
  fi
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" \
    >&2 </dev/null
}

[ ${#packages[@]} = 0 ] || install "${packages[@]}"

if ! find_pg_config >/dev/null; then
  [ -z "${PG_CONFIG:-}" ] ||
    die "$PG_CONFIG is not of a PostgreSQL 14 to 18 with server and headers"
  # The distribution's version, or the one that is installed already.
  if ! ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; then
    install postgresql
  fi
  major=$(ls -d /usr/lib/postgresql/*/bin/postgres | sort -V | tail -n 1 | cut -d/ -f5)
  install "postgresql-server-dev-$major"
fi

use_pg
command -v cargo >/dev/null || die "cargo is missing: install Rust from https://rustup.rs"
say "building for $("$PG_CONFIG" --version) ($PG_CONFIG) with $(rustc --version)"
