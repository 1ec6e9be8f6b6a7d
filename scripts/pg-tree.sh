#!/usr/bin/env bash
# Makes a private copy of a PostgreSQL installation and installs laser into it, so that the demo and
# the tests need neither root nor a shared installation directory, and never replace a library that
# a running server has mapped. PostgreSQL finds its share and library folders relative to the
# running binary (src/port/path.c, make_relative_path), which makes such a copy work.
#
#   scripts/pg-tree.sh TREE [PG_CONFIG]     prints the folder with the binaries
#
# TREE is created or refreshed; every file is put in place by rename.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
tree=${1:?usage: pg-tree.sh TREE [PG_CONFIG]}
pg_config=${2:-$(find_pg_config)} || die "no PostgreSQL 14 to 18 with server headers found"
mkdir -p "$tree"
tree=$(cd "$tree" && pwd)

bindir=$("$pg_config" --bindir)
sharedir=$("$pg_config" --sharedir)
pkglibdir=$("$pg_config" --pkglibdir)
version=$("$pg_config" --version)

# The copy is made again when the server was upgraded or an extension was added to it. Binaries must
# be real files: a link would be resolved to the original installation before the relative paths
# are computed. Files are removed before they are copied, so that a server which runs from the tree
# keeps what it has mapped.
stamp="$version $(stat -c %Y "$sharedir/extension" "$pkglibdir" | tr '\n' ' ')"
if [ "$(cat "$tree/.stamp" 2>/dev/null)" != "$stamp" ]; then
  rm -f "$tree/.stamp"
  mkdir -p "$tree$bindir" "$tree$sharedir" "$tree$pkglibdir"
  cp -L --remove-destination "$bindir"/* "$tree$bindir/"
  cp -RL --remove-destination "$sharedir"/. "$tree$sharedir/"
  cp -RL --remove-destination "$pkglibdir"/. "$tree$pkglibdir/"
  rm -f "$tree$sharedir"/extension/laser{,_pgvector}--*
  echo "$stamp" >"$tree/.stamp"
fi
DESTDIR="$tree" "$root/scripts/install.sh" "$pg_config" >&2
chmod -R a+rX "$tree"
echo "$tree$bindir"
