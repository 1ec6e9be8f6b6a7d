#!/usr/bin/env bash
# Starts a private server with laser, loads the demo's sentences, and shows searches across
# languages. Everything lies below target/demo; safe to repeat, quick when nothing has changed.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
use_pg

# ours FOLDER: refuses a folder that somebody else has put into /tmp or /var/tmp.
ours() {
  [ ! -L "$1" ] || die "$1 is a link"
  case $(stat -c %U "$1") in
    "$(id -un)" | "$(server_user)") ;;
    *) die "$1 belongs to $(stat -c %U "$1")" ;;
  esac
}

# --- A home that the server's account can reach -------------------------------------------------

home=$target/demo
mkdir -p "$target"
if [ ! -e "$home" ]; then
  rm -f "$home" # a link whose goal is gone
  if as_server test -x "$target"; then
    mkdir "$home"
  else
    # Below a folder such as /root, which other accounts cannot enter.
    away=/var/tmp/laser-demo-$(printf %s "$target" | cksum | cut -d' ' -f1)
    mkdir -p "$away"
    ours "$away"
    ln -s "$away" "$home"
    say "the account $(server_user) cannot reach $target: the server's files go to $away"
  fi
fi
home=$(readlink -f "$home")
chmod 755 "$home"

# A Unix socket's path holds 107 bytes.
socket=$home/run
if [ ${#socket} -gt 80 ]; then
  socket=/tmp/laser-demo-$(printf %s "$home" | cksum | cut -d' ' -f1)
fi
mkdir -p "$socket"
ours "$socket"
if [ "$(id -u)" = 0 ]; then chown "$(server_user)" "$socket"; fi
chmod 700 "$socket"
echo "$socket" >"$home/socket"

# --- The private copy of PostgreSQL with laser in it --------------------------------------------

say "installing laser into a private copy of $("$PG_CONFIG" --version)"
bin=$(CARGO_TARGET_DIR=$target "$root/scripts/pg-tree.sh" "$home/pg" "$PG_CONFIG" 2>/dev/null)
echo "$bin" >"$home/bin"
compgen -G "$root/encoder/models/*/model.safetensors" >/dev/null ||
  die "there is no model in encoder/models: train or import one with the program laser (see README.md)"
installed=$home/pg$("$PG_CONFIG" --pkglibdir)
shared=$home/pg$("$PG_CONFIG" --sharedir)

# What the running server has loaded, and what the database was made from.
program_stamp=$(cat "$installed/laser.so" "$installed/laser-encoder" | cksum)
data_stamp=$(cat "$shared"/extension/laser--*.sql "$shared"/laser/models/*/* \
  "$root"/demo/sentences.tsv | cksum)

# --- The server ---------------------------------------------------------------------------------

data=$home/data
log=$home/log
psql() { "$bin/psql" -X -q -h "$socket" -p 5432 -U postgres -v ON_ERROR_STOP=1 "$@"; }
running() { as_server "$bin/pg_ctl" status -D "$data" >/dev/null 2>&1; }

if [ -e "$data/PG_VERSION" ] && [ "$(cat "$data/PG_VERSION")" != "$pg_major" ]; then
  say "the demo's data is of PostgreSQL $(cat "$data/PG_VERSION"): creating it again"
  as_server "$bin/pg_ctl" stop -D "$data" -m immediate -w >/dev/null 2>&1 || true
  rm -rf "$data"
fi
if [ -e "$data" ] && [ "$(stat -c %U "$data")" != "$(server_user)" ]; then
  die "the demo in $home belongs to $(stat -c %U "$data"): run make demo as the user who made it, or remove the folder"
fi
if [ ! -e "$data/done" ]; then
  say "making a database cluster in $data"
  rm -rf "$data"
  mkdir "$data"
  if [ "$(id -u)" = 0 ]; then chown "$(server_user)" "$data"; fi
  as_server "$bin/initdb" -D "$data" -U postgres --auth=trust --encoding=UTF8 --locale=C \
    >"$home/initdb.log" 2>&1 || die "initdb failed, see $home/initdb.log"
  cat >>"$data/postgresql.conf" <<END
listen_addresses = ''
port = 5432
shared_preload_libraries = 'laser'
END
  touch "$data/done"
  if [ "$(id -u)" = 0 ]; then chown "$(server_user)" "$data/done"; fi
fi
# The socket's folder follows the clone.
printf "unix_socket_directories = '%s'\n" "$socket" >"$data/postgresql.auto.conf"
if [ "$(id -u)" = 0 ]; then chown "$(server_user)" "$data/postgresql.auto.conf"; fi

if running && [ "$(cat "$home/program-stamp" 2>/dev/null)" != "$program_stamp" ]; then
  say "laser has changed: restarting the server"
  as_server "$bin/pg_ctl" stop -D "$data" -m fast -w >/dev/null
fi
if ! running; then
  say "starting the server as $(server_user)"
  touch "$log"
  if [ "$(id -u)" = 0 ]; then chown "$(server_user)" "$log"; fi
  as_server "$bin/pg_ctl" start -D "$data" -l "$log" -w -t 120 >/dev/null ||
    die "the server did not start, see $log: $(tail -n 5 "$log")"
fi
echo "$program_stamp" >"$home/program-stamp"

# --- The sentences ------------------------------------------------------------------------------

count=$(wc -l <"$root/demo/sentences.tsv")
languages=$(cut -f2 "$root/demo/sentences.tsv" | sort -u | wc -l)
loaded=$(psql -d postgres -At -c \
  "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = 'demo'")
if [ "$loaded" != "$data_stamp" ]; then
  say "making the database demo"
  psql -d postgres -c "SET client_min_messages = warning" -c "DROP DATABASE IF EXISTS demo (FORCE)" \
    -c "CREATE DATABASE demo"
  psql -d demo <<END
CREATE EXTENSION laser;
CREATE TABLE sentences (
  id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  key text NOT NULL,
  lang text NOT NULL,
  body text NOT NULL,
  meaning embedding,
  UNIQUE (key, lang)
);
\\copy sentences (key, lang, body) FROM '$root/demo/sentences.tsv'
END
  say "embedding $count sentences in $languages languages"
  psql -d demo -c "CALL laser_embed_table('sentences', 'body', 'meaning', 256)"
  say "building the index"
  psql -d demo -c "CREATE INDEX sentences_body ON sentences USING laser (body)" \
    -c "ANALYZE sentences"
  psql -d postgres -c "COMMENT ON DATABASE demo IS '$data_stamp'"
fi

# --- Searches -----------------------------------------------------------------------------------

echo
echo "$count sentences in $languages languages. The five nearest in other languages, by the index:"
while IFS=$'\t' read -r lang text; do
  echo
  echo "  $text  ($lang)"
  psql -d demo -At -F $'\t' -v lang="$lang" -v text="$text" <<'END' |
SELECT to_char(distance, '0.000'), lang, body
FROM (SELECT lang, body, body <=> :'text' AS distance
      FROM sentences WHERE lang <> :'lang' ORDER BY body <=> :'text' LIMIT 5) nearest;
END
    while IFS=$'\t' read -r distance other body; do
      printf '      %s  %-3s %s\n' "$distance" "$other" "$body"
    done
done <"$root/demo/queries.tsv"

say "looking for every sentence's nearest neighbour in another language"
psql -d demo -f "$root/demo/share.sql"

say "mining translations out of two collections"
(cd "$root" && psql -d demo -f demo/mining.sql)

cat <<END

The server stays up. Connect with

    make psql                                  or
    $bin/psql -h $socket -U postgres demo

    make psql SQL="SELECT lang, body FROM sentences ORDER BY body <=> 'the soup is cold' LIMIT 5"
    make stop
END
