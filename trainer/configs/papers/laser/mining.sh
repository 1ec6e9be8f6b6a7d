#!/bin/sh
# Texts in which translations are hidden, as in BUCC: DATA/mining/{de,fr,ru,zh}.txt, en-*.txt and *.gold of the held-out
# part of massive. Every tenth key has its sentence on both sides, the others on one of them.
set -eu
data=${1:?DATA}
mkdir -p "$data/mining"
for l in de fr ru zh; do
    zstd -dcq --long=27 "$data/dev/massive.tsv.zst" | awk -F '\t' -v l="$l" -v to="$data/mining" '
        function hide() {
            if (x == "" || y == "" || (x in seen) || (y in seen)) return
            seen[x]; seen[y]; n++
            if (n % 10 == 0) print "s" n "\tt" n > (to "/" l ".gold")
            if (n % 10 == 0 || n % 2) print "s" n "\t" x > (to "/" l ".txt")
            if (n % 10 == 0 || n % 2 == 0) print "t" n "\t" y > (to "/en-" l ".txt")
        }
        $1 != key { hide(); key = $1; x = y = "" }
        $2 == l { x = $3 }
        $2 == "en" { y = $3 }
        END { hide() }'
done
