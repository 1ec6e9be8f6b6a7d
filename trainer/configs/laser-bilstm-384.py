#!/usr/bin/env python3
"""A residual BiLSTM that tells what came early in a sentence from what came late, without training.

    laser-bilstm-384.py MODEL EMBEDDINGS.npy GATE OUT

MODEL is the folder of a mean, with an int8 table; EMBEDDINGS.npy what `laser embed --format npy` makes of some ten
thousand sentences with it. With gates that do not depend on the input (input 1/2, forget FORGET, output 1, no recurrent
products) the last state of a direction is sum_i FORGET^(distance from its end) tanh(V x_i) / 2, V being the first
principal axes of the embeddings. The residual is the difference of the two directions, along the last principal axes,
where the mean has least: its cosines change little, but those of two sentences in which the same words
stand at opposite ends. Needs numpy.
"""
import json
import os
import shutil
import struct
import sys

import numpy as np

UNITS = 128  # of each direction
FORGET = 0.8  # what a state keeps from step to step: three words back count half
LARGEST = 1.0  # argument of tanh


def read(path):
    """Tensors of a safetensors file."""
    data = open(path, "rb").read()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    types = {"F32": np.float32, "I8": np.int8}
    tensors = {}
    for name, info in header.items():
        if name != "__metadata__":
            start, end = info["data_offsets"]
            part = data[8 + length + start : 8 + length + end]
            tensors[name] = np.frombuffer(part, types[info["dtype"]]).reshape(info["shape"])
    return tensors


def write(path, tensors):
    """The reverse, floats first, so that all are aligned."""
    names = sorted(tensors, key=lambda name: (tensors[name].dtype == np.int8, name))
    header, at = {}, 0
    for name in names:
        tensor = tensors[name]
        kind = "I8" if tensor.dtype == np.int8 else "F32"
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            file.write(np.ascontiguousarray(tensors[name]).tobytes())


def main(model, embeddings, gate, out):
    tensors = read(os.path.join(model, "model.safetensors"))
    table = tensors["embed_tokens.weight"] * tensors["embed_tokens.weight.scale"][:, None]
    width = table.shape[1]
    rows = np.load(embeddings).astype(np.float64)
    axes = np.linalg.eigh(rows.T @ rows / len(rows))[1][:, ::-1]  # from the strongest to the weakest
    factor = LARGEST / np.abs(table @ axes[:, :8]).max()

    # Gates in the order input, forget, cell, output.
    inputs = np.zeros((4 * UNITS, width), np.float32)
    inputs[2 * UNITS : 3 * UNITS] = factor * axes[:, :UNITS].T
    bias = np.zeros(4 * UNITS, np.float32)
    bias[UNITS : 2 * UNITS] = np.log(FORGET / (1 - FORGET))
    bias[3 * UNITS :] = 6.0
    for suffix in ("", "_reverse"):
        tensors["lstm.weight_ih_l0" + suffix] = inputs
        tensors["lstm.weight_hh_l0" + suffix] = np.zeros((4 * UNITS, UNITS), np.float32)
        tensors["lstm.bias_ih_l0" + suffix] = bias
        tensors["lstm.bias_hh_l0" + suffix] = np.zeros(4 * UNITS, np.float32)
    last = axes[:, -UNITS:] / factor
    tensors["projection.weight"] = np.hstack([last, -last]).astype(np.float32)
    tensors["projection.bias"] = np.zeros(width, np.float32)
    tensors["gate"] = np.array([gate], np.float32)

    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    with open(os.path.join(model, "tokenizer.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)
    config["encoder"] = {
        "architecture": "residual_bilstm",
        "embedding_size": width,
        "pooling": config["encoder"]["pooling"],
        "hidden_size": UNITS,
        "layers": 1,
        "state_pooling": "last",
    }
    if "ngrams" in tokenizer:
        pieces = tokenizer["tokenizer"]["model"]["vocab"]
        config["encoder"]["ngrams_from"] = len(pieces)
    os.makedirs(out, exist_ok=True)
    write(os.path.join(out, "model.safetensors"), tensors)
    shutil.copy(os.path.join(model, "tokenizer.json"), out)
    with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, ensure_ascii=False, indent=2)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4])
