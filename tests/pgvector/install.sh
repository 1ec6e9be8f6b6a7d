#!/usr/bin/env bash
# Builds pgvector, whose source tests/pgvector/fetch.sh has put into FOLDER, and installs it into the
# private copy of PostgreSQL at TREE (scripts/pg-tree.sh). Does nothing where the server has pgvector.
#
#   tests/pgvector/install.sh FOLDER TREE
set -euo pipefail
. "$(dirname "$0")/../../scripts/lib.sh"
source=${1:?usage: install.sh FOLDER TREE}/pgvector
tree=${2:?usage: install.sh FOLDER TREE}
pg_config=$(find_pg_config) || die "no PostgreSQL 14 to 18 with server headers found"
[ ! -e "$tree$("$pg_config" --sharedir)/extension/vector.control" ] || exit 0

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
cp -R "$source/." "$build/"
# Without -march=native, as in the packages of distributions.
flags=(-s -C "$build" PG_CONFIG="$pg_config" OPTFLAGS= with_llvm=no)
make "${flags[@]}" -j2
make "${flags[@]}" install DESTDIR="$tree"
chmod -R a+rX "$tree"
