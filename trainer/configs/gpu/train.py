#!/usr/bin/env python3
"""Trains a mean, or a mean with a gated BiLSTM and its table along, on a GPU.

    train.py CORPUS MODEL OUT --seconds 80 [--teacher ROWS] [--pooling max --gate 0.3 --perturbed] …

CORPUS is packed, MODEL the folder that it begins with, OUT the folder that is written (int8 rows; `laser export` makes it smaller).
The objective is the trainer's `objective.dual`, both directions, and with --teacher (what teacher.py writes) its soft labels: KL from the
teacher's similarities of the batch's English sentences, divided by --tau and without the pair itself, to those of sources and targets and of
targets among themselves (Reimers and Gurevych 2020 have the squared error instead). Needs PyTorch.
"""
import argparse
import json
import os
import shutil
import time

import numpy as np
import torch
import torch.nn.functional as F

from batches import Batches
from files import read_model, write_tensors
from model import Model

BETAS, EPSILON, DECAY, CLIP = (0.9, 0.99), 1e-9, 0.01, 1.0
NEVER = -1e4


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--name", default="laser-contextual-384")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--teacher", help="of teacher.py, without .npy")
    parser.add_argument("--kl", type=float, default=1.0, help="weight of the soft labels")
    parser.add_argument("--tau", type=float, default=0.07)
    parser.add_argument("--similar", type=float, default=0.9, help="no negatives, by the teacher, from this cosine on")
    parser.add_argument("--pooling", choices=["max", "last"])
    parser.add_argument("--gate", type=float, default=0.3, help="of a new BiLSTM")
    parser.add_argument("--perturbed", action="store_true", help="perturbed sentences as further candidates")
    parser.add_argument("--freeze", action="store_true", help="the table")
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--cut", type=int, default=128, help="tokens of a sentence")
    parser.add_argument("--scale", type=float, default=30.0)
    parser.add_argument("--margin", type=float, default=0.2)
    parser.add_argument("--rate", type=float, default=0.005, help="of the table")
    parser.add_argument("--bilstm-rate", type=float, default=0.002)
    parser.add_argument("--left-out", type=float, default=0.2, help="share of the tokens")
    parser.add_argument("--dropout", type=float, default=0.1, help="of pooled states")
    parser.add_argument("--average", type=float, default=0.999)
    parser.add_argument("--warmup", type=float, default=0.03, help="of the seconds")
    parser.add_argument("--ngrams-from", type=int, default=40000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def soft_labels(left, right, target, hidden, tau):
    own = F.log_softmax((left @ right.T / tau).masked_fill(hidden, NEVER), 1)
    return F.kl_div(own, target, reduction="none", log_target=True).sum(1)


def main(a):
    torch.manual_seed(a.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    batches = Batches(a.corpus, a.batch, a.cut, a.seed, a.device)
    tensors, tokenizer = read_model(a.model)
    model = Model(tensors, a.pooling, a.ngrams_from, a.gate, a.dropout).to(a.device)
    if a.teacher:
        rows = torch.full((len(batches.group),), -1, dtype=torch.long, device=a.device)
        ids = torch.as_tensor(np.load(a.teacher + ".ids.npy"), device=a.device)
        rows[ids[:, 0]] = ids[:, 1]
        teacher = torch.as_tensor(np.load(a.teacher + ".npy"), device=a.device)
    common = {"betas": BETAS, "eps": EPSILON}
    groups = [] if a.freeze else [{"params": [model.table, model.weight], "lr": a.rate, "weight_decay": 0.0, **common}]
    if a.pooling:
        groups.append({"params": model.above(), "lr": a.bilstm_rate, "weight_decay": DECAY, **common})
        groups.append({"params": [model.gate], "lr": a.bilstm_rate, "weight_decay": 0.0, **common})
    for parameter in (model.table, model.weight):
        parameter.requires_grad_(not a.freeze)
    optimizer = torch.optim.AdamW(groups, fused=a.device != "cpu")
    peaks = [group["lr"] for group in optimizer.param_groups]
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    average = [parameter.detach().clone() for parameter in trained]
    diagonal = torch.arange(a.batch, device=a.device)
    begin, step = time.time(), 0
    while (share := (time.time() - begin) / a.seconds) < 1:
        for group, peak in zip(optimizer.param_groups, peaks):
            group["lr"] = peak * max(min(1.0, share / a.warmup) * (1 - share), 1e-3)
        sources, targets, english = batches.draw()
        both = model(*batches.texts(torch.cat([sources, targets])), a.left_out)
        x, y = both[: a.batch], both[a.batch :]
        same = batches.same(sources, targets)
        hidden = same
        if a.teacher:
            known = rows[english]
            own = teacher[known.clamp_min(0)].float()
            likeness = own @ own.T
            hidden = same | (likeness > a.similar)
        logits = a.scale * (x @ y.T)
        logits[diagonal, diagonal] = logits[diagonal, diagonal] - a.scale * a.margin
        hidden = hidden.clone()
        hidden[diagonal, diagonal] = False
        logits = logits.masked_fill(hidden, NEVER)
        candidates = logits
        if a.perturbed and batches.perturbed:
            candidates = torch.cat([logits, a.scale * x @ model(*batches.perturbations(english), a.left_out).T], 1)
        loss = 0.5 * (F.cross_entropy(candidates, diagonal) + F.cross_entropy(logits.T, diagonal))
        if a.teacher:
            hidden = same | (known < 0)[None]
            target = F.log_softmax((likeness / a.tau).masked_fill(hidden, NEVER), 1)
            labels = [soft_labels(left, y, target, hidden, a.tau) for left in (x, y)]
            loss = loss + a.kl * 0.5 * (sum(labels) * (known >= 0)).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if a.pooling:
            torch.nn.utils.clip_grad_norm_(model.above(), CLIP)
        optimizer.step()
        step += 1
        if step % 4 == 0:
            keep = min(a.average, (1 + step) / (10 + step)) ** 4
            torch._foreach_lerp_(average, [parameter.detach() for parameter in trained], 1 - keep)
        if step % 50 == 1:
            print(f"{time.time() - begin:.0f} s, step {step}, loss {loss.item():.4f}", flush=True)
    print(f"{step} steps, {step * a.batch / (time.time() - begin):.0f} pairs a second")
    with torch.no_grad():
        for parameter, value in zip(trained, average):
            parameter.copy_(value)
    os.makedirs(a.out, exist_ok=True)
    write_tensors(os.path.join(a.out, "model.safetensors"), model.tensors())
    shutil.copy(tokenizer, os.path.join(a.out, "tokenizer.json"))
    config = {"format": 1, "name": a.name, "dimensions": model.table.shape[1], "max_tokens": 2048, "normalize": True}
    with open(os.path.join(a.out, "config.json"), "w", encoding="utf-8") as file:
        json.dump({**config, "encoder": model.config()}, file, indent=2)


if __name__ == "__main__":
    main(arguments())
