#!/usr/bin/env bash
# The end-to-end tests on a PostgreSQL with assertions (--enable-cassert), built from Debian's source:
#
#   scripts/cassert.sh [ARGUMENTS FOR cargo test]     scripts/cassert.sh --test index_crash
#
# CASSERT_PG=15 is the major version. The server is built once, below target/cassert, for this user and
# with what configure finds installed; nothing is installed outside. The extension is compiled again there,
# for that server's headers, in a build folder of its own. Assertions make tests several times slower.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
major=${CASSERT_PG:-15}
home=$target/cassert/$major
prefix=$home/installed

if [ ! -x "$prefix/bin/postgres" ]; then
  command -v apt-get >/dev/null || die "PostgreSQL's source comes from Debian's archive, by apt-get"
  tools="perl make gcc"
  # Archives of older versions come with what these make.
  [ "$major" -lt 17 ] || tools+=" bison flex"
  for tool in $tools; do
    command -v "$tool" >/dev/null || missing="${missing:-} $tool"
  done
  [ -z "${missing:-}" ] || die "please install:$missing"
  mkdir -p "$home"
  cd "$home"
  # Lists of packages of its own, with the source archives beside those of the machine.
  mkdir -p apt/{lists/partial,cache/archives/partial,parts}
  cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
    sed -nE 's/^deb( .*(debian|ubuntu|postgresql).*)/deb-src\1/p' >apt/sources.list || true
  for file in /etc/apt/sources.list.d/*.sources; do
    grep -qE '^URIs:.*(debian|ubuntu|postgresql)' "$file" 2>/dev/null || continue
    sed -E 's/^Types:.*/Types: deb-src/' "$file" >"apt/parts/$(basename "$file")"
  done
  apt=(-qq -o "Dir::Etc::sourcelist=$PWD/apt/sources.list" -o "Dir::Etc::sourceparts=$PWD/apt/parts"
    -o "Dir::State::lists=$PWD/apt/lists" -o "Dir::Cache=$PWD/apt/cache" -o APT::Sandbox::User=root)
  say "fetching the source of postgresql-$major"
  apt-get "${apt[@]}" update || say "apt-get update failed for some lists; trying with the others"
  # Not every mirror has the source of the newest version: any of the major version will do.
  fetched=
  for version in $(apt-cache "${apt[@]}" showsrc "postgresql-$major" | sed -n 's/^Version: //p' | sort -Vru); do
    apt-get "${apt[@]}" source --download-only "postgresql-$major=$version" || continue
    fetched=$version
    break
  done
  [ -n "$fetched" ] || die "no list of packages has a source of postgresql-$major that can be fetched"
  rm -rf source
  mkdir source
  # Debian's patches move folders to Debian's places; the original source stays within its prefix.
  tar -xf postgresql-"$major"_*.orig.tar.* -C source --strip-components 1
  rm -rf apt
  say "building it with assertions"
  cd source
  options=(--prefix="$prefix" --enable-cassert --enable-debug --without-icu --without-llvm
    --enable-tap-tests)
  perl -MIPC::Run -e 1 2>/dev/null || options=("${options[@]/--enable-tap-tests/}")
  [ -e /usr/include/readline/readline.h ] || options+=(--without-readline)
  [ -e /usr/include/zlib.h ] || options+=(--without-zlib)
  usage=$(./configure --help)
  for i in "${!options[@]}"; do
    # Not every version knows every option; an empty one is none.
    option=${options[$i]}
    case $option in
      --without-icu | --without-llvm)
        name=${option#--without-}
        grep -q -- "--with\(out\)\?-$name" <<<"$usage" || unset "options[$i]"
        ;;
      "") unset "options[$i]" ;;
    esac
  done
  # -O1: as the developers of PostgreSQL test, but not all too slow.
  ./configure -q "${options[@]}" CFLAGS="-O1 -g" >&2
  make -s -j "$(nproc)" install >&2
  for module in contrib/amcheck contrib/pgstattuple contrib/pageinspect src/test/isolation; do
    make -s -C "$module" install >&2
  done
  cd "$root"
fi

"$prefix/bin/pg_config" --configure | grep -q enable-cassert || die "$prefix has no assertions"
export PG_CONFIG=$prefix/bin/pg_config CARGO_TARGET_DIR=$target/cassert/build-$major
unset PGRX_HOME
target=$CARGO_TARGET_DIR
use_pg
say "the extension for $("$PG_CONFIG" --version) with assertions"
cargo build --locked --release -p laser -p laser-encoder -p laser-tests --lib --bins --tests "${features[@]}"
LASER_SKIPPED=$(mktemp)
export LASER_SKIPPED
trap 'rm -f "$LASER_SKIPPED"' EXIT
say "the tests"
passed=0
cargo test --locked --release -p laser-tests -p laser -p laser-encoder "${features[@]}" --no-fail-fast \
  "${@:---tests}" || passed=$?
[ ! -s "$LASER_SKIPPED" ] || sort -u "$LASER_SKIPPED" >&2
exit "$passed"
