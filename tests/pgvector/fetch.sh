#!/usr/bin/env bash
# Puts pgvector's source (with its tests) and, where it is not installed, Perl's module IPC::Run into
# a folder, from Debian's archive; installs nothing. PGVECTOR_SOURCE names a source tree to use
# instead of Debian's.
#
#   tests/pgvector/fetch.sh FOLDER      # makes FOLDER/pgvector and perhaps FOLDER/perl5
set -euo pipefail
home=${1:?usage: fetch.sh FOLDER}
mkdir -p "$home"
cd "$home"
suite=trixie

need=()
if [ -n "${PGVECTOR_SOURCE:-}" ]; then
  rm -rf pgvector
  mkdir pgvector
  cp -R "$PGVECTOR_SOURCE/." pgvector/
elif [ ! -e pgvector/vector.control ]; then
  need+=(source)
fi
if ! perl -I perl5 -MIPC::Run -e 1 2>/dev/null; then need+=(perl); fi
[ ${#need[@]} -gt 0 ] || exit 0

command -v apt-get >/dev/null || {
  echo "there is no apt-get to fetch ${need[*]} with; set PGVECTOR_SOURCE and install IPC::Run" >&2
  exit 1
}
mirror=$({ cat /etc/apt/sources.list /etc/apt/sources.list.d/*.{sources,list} 2>/dev/null || true; } |
  grep -v '^#' | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n 1 | tr -d ' ' || true)
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
trust=trusted=yes
[ ! -e $keyring ] || trust=signed-by=$keyring
mkdir -p apt/{lists/partial,cache/archives/partial,parts}
for kind in deb deb-src; do
  echo "$kind [$trust] ${mirror:-http://deb.debian.org/debian} $suite main"
done >apt/sources.list
apt=(-qq -o "Dir::Etc::sourcelist=$PWD/apt/sources.list" -o "Dir::Etc::sourceparts=$PWD/apt/parts"
  -o "Dir::State::lists=$PWD/apt/lists" -o "Dir::Cache=$PWD/apt/cache"
  -o APT::Sandbox::User=root -o Acquire::Retries=1 -o Acquire::http::Timeout=20)
apt-get "${apt[@]}" update
for what in "${need[@]}"; do
  case $what in
    source)
      apt-get "${apt[@]}" source --download-only pgvector
      rm -rf pgvector.new
      mkdir pgvector.new
      tar -xf pgvector_*.orig.tar.* -C pgvector.new --strip-components 1
      mv pgvector.new pgvector
      ;;
    perl)
      apt-get "${apt[@]}" download libipc-run-perl
      dpkg-deb -x libipc-run-perl_*.deb unpacked
      mv unpacked/usr/share/perl5 perl5
      rm -rf unpacked
      ;;
  esac
done
rm -rf apt
