"""Model folders and packed corpora (`trainer/src/data/packed.rs`), read and written with NumPy and PyTorch."""
import json
import os
import struct

import numpy as np
import torch

TYPES = {"F32": torch.float32, "I8": torch.int8, "BF16": torch.bfloat16, "F16": torch.float16}


class Packed:
    """A packed corpus: `section(name, type)` is one of its arrays, `header` its description."""

    def __init__(self, path):
        self.bytes = np.memmap(path, np.uint8, "r")
        length = int(self.bytes[8:16].view(np.uint64)[0])
        self.header = json.loads(bytes(self.bytes[16 : 16 + length]))
        self.base = 16 + length + -(16 + length) % 8

    def section(self, name, kind):
        start, length = self.header["sections"][name]
        return np.frombuffer(self.bytes[self.base + start : self.base + start + length], kind)

    def tokens(self, name="tokens"):
        kind = np.uint32 if self.header["token_width"] == 4 else np.uint16
        return self.section(name, kind).astype(np.int32)

    def groups(self):
        """First sentence of each group, group of each sentence, and the first English sentence of each group or -1."""
        starts = self.section("group_start", np.uint32).astype(np.int64)
        group = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        language = self.section("sentence_language", np.uint16)
        english = np.where(language == self.header["languages"].index("en"))[0][::-1]
        first = np.full(len(starts) - 1, -1)
        first[group[english]] = english
        return starts, group, first


def read_tensors(path):
    data = open(path, "rb").read()
    length = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, info in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            start, end = (8 + length + at for at in info["data_offsets"])
            part = torch.frombuffer(bytearray(data[start:end]), dtype=TYPES[info["dtype"]])
            tensors[name] = part.reshape(info["shape"])
    return tensors


def write_tensors(path, tensors):
    """Floats first, so that all are aligned."""
    names = sorted(tensors, key=lambda name: (tensors[name].dtype == torch.int8, name))
    kinds = {kind: name for name, kind in TYPES.items()}
    header, at = {}, 0
    for name in names:
        tensor = tensors[name]
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": kinds[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            file.write(tensors[name].contiguous().numpy().tobytes())


def read_model(folder):
    """Tensors of a folder, with those of its base, int8 tables as floats; and where its tokenizer is."""
    tensors = read_tensors(os.path.join(folder, "model.safetensors"))
    tokens = folder
    if "embed_tokens.weight" not in tensors:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            base = json.load(file)["base"]["model"]
        tokens = os.path.join(os.path.dirname(os.path.abspath(folder)), base)
        tensors = {**read_tensors(os.path.join(tokens, "model.safetensors")), **tensors}
    scale = tensors.pop("embed_tokens.weight.scale", None)
    table = tensors["embed_tokens.weight"].float()
    tensors["embed_tokens.weight"] = table if scale is None else table * scale[:, None]
    return tensors, os.path.join(tokens, "tokenizer.json")
