#!/usr/bin/env python3
"""Of two English sentences with the same words in other roles, is the translation the nearer one?

    roles.py LASER MODEL…

LASER is the program `laser`. Prints for each model how often (right), and how often in both directions of a pair (both),
over the pairs of roles.tsv and its languages; a tie is an error. Needs numpy.
"""
import os
import subprocess
import sys
import tempfile

import numpy as np

TIE = 1e-6


def main(laser, models):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "roles.tsv")
    with open(path, encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    place = {(key, language): i for i, (key, language, _) in enumerate(rows)}
    text = "\n".join(row[2] for row in rows).encode()
    languages = sorted({row[1] for row in rows} - {"en"})
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "rows.npy")
            subprocess.run([laser, "embed", "-m", model, "--format", "npy", "-o", out], input=text, check=True)
            e = np.load(out)
        counts = []
        for pair in sorted({row[0][:-2] for row in rows}):
            for language in languages:
                hits = 0
                for own, other in ("ab", "ba"):
                    x = e[place[f"{pair}-{own}", language]]
                    hits += x @ e[place[f"{pair}-{own}", "en"]] > x @ e[place[f"{pair}-{other}", "en"]] + TIE
                counts.append(hits)
        counts = np.array(counts)
        print(f"{model}: right {50 * counts.mean():.1f} %, both {100 * (counts == 2).mean():.1f} %, {len(counts)} pairs")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
