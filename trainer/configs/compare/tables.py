#!/usr/bin/env python3
"""Model folders with other tables, made of that of a mean ("without training" in its card).

    tables.py MODEL EMBEDDINGS.npy OUT

EMBEDDINGS.npy is what `laser embed --format npy` makes of some ten thousand sentences with MODEL. Below OUT: the first 256 and 128
dimensions, the table turned onto the principal axes of the embeddings with all, 256 and 128 of them, and rows of 4 bits, stored
as 8: with the largest value as 7, and with the scale of each row that rounds best. Needs numpy.
"""
import json
import os
import shutil
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from importlib import import_module

files = import_module("laser-bilstm-384")


def main(model, embeddings, out):
    tensors = files.read(os.path.join(model, "model.safetensors"))
    table = tensors["embed_tokens.weight"] * tensors["embed_tokens.weight.scale"][:, None]
    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)

    def save(name, rows, largest=127, scale=None):
        folder = os.path.join(out, name)
        os.makedirs(folder, exist_ok=True)
        scale = np.abs(rows).max(1) / largest if scale is None else scale
        scale = np.maximum(scale, 1e-12).astype(np.float32)
        values = np.clip(np.rint(rows / scale[:, None]), -largest, largest).astype(np.int8)
        changed = {"embed_tokens.weight": values, "embed_tokens.weight.scale": scale}
        files.write(os.path.join(folder, "model.safetensors"), {**tensors, **changed})
        shutil.copy(os.path.join(model, "tokenizer.json"), folder)
        config["name"], config["dimensions"] = name, rows.shape[1]
        config["encoder"]["embedding_size"] = rows.shape[1]
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file, ensure_ascii=False)

    rows = np.load(embeddings).astype(np.float64)
    axes = np.linalg.eigh(rows.T @ rows / len(rows))[1][:, ::-1]
    turned = (table @ axes).astype(np.float32)
    for width in (table.shape[1], 256, 128):
        save(f"turned-{width}", turned[:, :width])
        save(f"first-{width}", table[:, :width])
    save("bits-4", table, 7)
    least, best = np.full(len(table), np.inf), np.zeros(len(table), np.float32)
    for factor in np.linspace(0.5, 1.0, 11):
        scale = np.maximum(np.abs(table).max(1) / 7 * factor, 1e-12)
        rounded = np.clip(np.rint(table / scale[:, None]), -7, 7) * scale[:, None]
        error = ((rounded - table) ** 2).sum(1)
        better = error < least
        least[better], best[better] = error[better], scale[better]
    save("bits-4-best", table, 7, best)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
