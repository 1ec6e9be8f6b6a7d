# Shared by the scripts; to be sourced. Needs no arguments, leaves the current folder alone.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}

# say TEXT: a line of progress, with the seconds since the script began.
say() { printf '\033[1m[%3ds]\033[0m %s\n' "$SECONDS" "$*" >&2; }

# die TEXT: ends the script.
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# as_root COMMAND…: directly when root, through sudo otherwise.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "root or sudo is needed to run: $*"
  fi
}

# complete PG_CONFIG: whether this is a supported server with its headers.
complete() {
  local version
  version=$("$1" --version 2>/dev/null) || return 1
  case $version in
    "PostgreSQL 14"* | "PostgreSQL 15"* | "PostgreSQL 16"* | "PostgreSQL 17"* | "PostgreSQL 18"*) ;;
    *) return 1 ;;
  esac
  [ -x "$("$1" --bindir)/postgres" ] && [ -x "$("$1" --bindir)/initdb" ] &&
    [ -e "$("$1" --includedir-server)/postgres.h" ]
}

# find_pg_config: the installation to build for: $PG_CONFIG or $PGRX_PG_CONFIG_PATH if set, else the
# newest complete one.
find_pg_config() {
  if [ -n "${PG_CONFIG:-${PGRX_PG_CONFIG_PATH:-}}" ]; then
    local chosen
    chosen=$(command -v "${PG_CONFIG:-$PGRX_PG_CONFIG_PATH}") || return 1
    complete "$chosen" && echo "$chosen"
    return
  fi
  local candidate
  for candidate in $(ls -d /usr/lib/postgresql/*/bin/pg_config /usr/pgsql-*/bin/pg_config \
    2>/dev/null | sort -rV) $(command -v pg_config || true); do
    if complete "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

# use_pg: sets PG_CONFIG, the build's variables and `features` for cargo.
use_pg() {
  PG_CONFIG=$(find_pg_config) || die "no PostgreSQL 14 to 18 with server headers found; run scripts/deps.sh or set PG_CONFIG"
  export PG_CONFIG
  pg_major=$("$PG_CONFIG" --version | sed 's/^PostgreSQL \([0-9]*\).*/\1/')
  # pgrx reads the headers of this installation; cargo-pgrx and its home folder are not needed.
  export PGRX_PG_CONFIG_PATH=$PG_CONFIG
  if [ -z "${PGRX_HOME:-}" ]; then
    # pgrx has cargo watch a file there; were it missing, every build would compile pgrx again.
    export PGRX_HOME=$target/pgrx
    mkdir -p "$PGRX_HOME"
    [ -e "$PGRX_HOME/config.toml" ] || : >"$PGRX_HOME/config.toml"
  fi
  features=(--no-default-features --features "laser/pg$pg_major,laser-encoder/jieba,laser-encoder/mecab")
  for folder in "${HOME:-/root}/.cargo/bin" /usr/local/cargo/bin; do
    command -v cargo >/dev/null || PATH=$folder:$PATH
  done
}

# server_user: the account that servers run as; PostgreSQL refuses root.
server_user() {
  if [ "$(id -u)" != 0 ]; then
    id -un
  elif id postgres >/dev/null 2>&1; then
    echo postgres
  else
    echo nobody
  fi
}

# as_server COMMAND…: as that account, from a folder that it can enter.
as_server() {
  if [ "$(id -u)" = 0 ]; then
    (cd / && exec setpriv --reuid="$(server_user)" --regid="$(id -g "$(server_user)")" \
      --clear-groups env HOME=/ "$@")
  else
    (cd / && exec "$@")
  fi
}
