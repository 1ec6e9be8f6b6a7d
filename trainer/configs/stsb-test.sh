#!/usr/bin/env bash
# Prints the lines of the corpus' source stsb_mt that hold test sentences of STS-B, so that they can be
# held out of training: trainer/configs/stsb-test.sh STS_FOLDER >runs/stsb-test.tsv
#
# Keys number the sentences of all pairs, train (5,749 pairs), dev (1,500) and test (1,379), two a pair:
# stsb:1NNNNN are the first 8,628, stsb:2NNNNN the rest. A sentence that occurs twice has its first key
# only; STS_FOLDER has the SemEval files (sts12.en.tsv … sts16.en.tsv), of which STS-B was drawn, and what
# is paired there with a test sentence goes as well.
set -euo pipefail
[ $# = 1 ] || { echo "usage: $0 STS_FOLDER" >&2; exit 1; }
corpus=$(dirname "$0")/data/train/stsb_mt.tsv.zst
zstd -dc "$corpus" | awk -F'\t' '
  function norm(text) { text = tolower(text); gsub(/[^[:alnum:]_]/, "", text); return text }
  FILENAME != "-" { first[++pairs] = norm($(NF - 1)); second[pairs] = norm($NF); next }
  { line[++lines] = $0; key[lines] = $1 }
  $2 == "en" {
    text[$1] = norm($3)
    row = substr($1, 7) + (substr($1, 6, 1) == "2" ? 8628 : 0)
    if (row >= 2 * (5749 + 1500)) { test[$1] = 1; tested[text[$1]] = 1 }
  }
  END {
    for (i = 1; i <= pairs; i++) {
      if (first[i] in tested) partner[second[i]] = 1
      if (second[i] in tested) partner[first[i]] = 1
    }
    for (i = 1; i <= lines; i++)
      if (key[i] in test || text[key[i]] in partner) print line[i]
  }' "$1"/sts1[2-6].en.tsv -
