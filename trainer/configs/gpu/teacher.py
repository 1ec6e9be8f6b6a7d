#!/usr/bin/env python3
"""Embeddings of the English sentences of a packed corpus by a teacher: all-MiniLM-L6-v2 as `laser import` writes it.

    teacher.py CORPUS TEACHER TOKENIZER OUT

The sentences are put together again from the pieces of TOKENIZER (the tokenizer.json that packed CORPUS), lower-cased as both models
read them. Writes OUT.npy, half floats, a row a different text, and OUT.ids.npy, pairs of a sentence of the corpus and its row. Needs
PyTorch, tokenizers and a GPU.
"""
import json
import sys

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from files import Packed, read_tensors

WIDTH, LAYERS, HEADS = 384, 6, 12
LONGEST = 96  # tokens of the teacher
BATCH = 4096


def texts_of(corpus, tokenizer):
    """The different texts, and pairs of a sentence and the position of its text."""
    with open(tokenizer, encoding="utf-8") as file:
        vocabulary = json.load(file)["tokenizer"]["model"]["vocab"]
    pieces = [""] * len(vocabulary)
    for piece, at in vocabulary.items():
        pieces[at] = piece.replace("▁", " ")
    starts, tokens = corpus.section("sentence_start", np.uint64).astype(np.int64), corpus.tokens()
    first = corpus.groups()[2]
    rows, pairs = {}, []
    for sentence in np.sort(first[first >= 0]):
        ids = tokens[starts[sentence] : starts[sentence + 1]]
        text = "".join(pieces[i] for i in ids if i < len(pieces)).strip()
        pairs.append((sentence, rows.setdefault(text, len(rows))))
    return list(rows), pairs


class Teacher:
    def __init__(self, folder, device):
        tensors = read_tensors(folder + "/model.safetensors")
        self.tensors = {name: tensor.to(device, torch.bfloat16) for name, tensor in tensors.items()}
        self.device = device

    def norm(self, x, name):
        return F.layer_norm(x, (WIDTH,), self.tensors[name + ".weight"], self.tensors[name + ".bias"], 1e-12)

    def linear(self, x, name):
        return F.linear(x, self.tensors[name + ".weight"], self.tensors[name + ".bias"])

    @torch.no_grad()
    def embed(self, batch):
        longest = max(map(len, batch))
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        mask = torch.zeros(len(batch), longest, dtype=torch.bool)
        for i, row in enumerate(batch):
            ids[i, : len(row)] = torch.tensor(row)
            mask[i, : len(row)] = True
        ids, mask = ids.to(self.device), mask.to(self.device)
        t = self.tensors
        x = t["embed_tokens.weight"][ids] + t["embed_positions.weight"][:longest][None] + t["embed_types.weight"][0]
        x = self.norm(x, "embed_norm")
        for layer in range(LAYERS):
            at = f"layers.{layer}."
            heads = (len(batch), longest, HEADS, WIDTH // HEADS)
            q, k, v = (
                self.linear(x, f"{at}attention.{name}").view(heads).transpose(1, 2) for name in ("query", "key", "value")
            )
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
            y = self.linear(y.transpose(1, 2).reshape(x.shape), at + "attention.output")
            x = self.norm(x + y, at + "attention_norm")
            y = self.linear(F.gelu(self.linear(x, at + "feed_forward.up")), at + "feed_forward.down")
            x = self.norm(x + y, at + "feed_forward_norm")
        shares = mask[:, :, None].float()
        return F.normalize((x.float() * shares).sum(1) / shares.sum(1)).half().cpu().numpy()


def main(corpus, folder, tokenizer, out):
    texts, pairs = texts_of(Packed(corpus), tokenizer)
    tokens = Tokenizer.from_file(folder + "/tokenizer.json")
    tokens.no_padding()
    tokens.enable_truncation(LONGEST)
    rows = [row.ids for row in tokens.encode_batch(texts)]
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    teacher, result = Teacher(folder, "cuda"), np.zeros((len(rows), WIDTH), np.float16)
    for i in range(0, len(order), BATCH):
        part = order[i : i + BATCH]
        result[part] = teacher.embed([rows[j] for j in part])
    np.save(out + ".npy", result)
    np.save(out + ".ids.npy", np.array(pairs))
    print(f"{len(pairs)} sentences, {len(texts)} texts")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
