#!/usr/bin/env bash
# Runs one family of benchmarks:  scripts/bench.sh encoder|index|mining|trainer [ARGUMENTS]
set -euo pipefail
. "$(dirname "$0")/lib.sh"
use_pg
cd "$root"
echo placeholder
