"""A training step in PyTorch: MODEL THREADS RUNS PRECISION DEVICE. Prints wall and processor seconds."""

import sys
import time

import torch

model, threads, runs, kind, device = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
torch.set_num_threads(threads)
torch.manual_seed(0)


class Lstm(torch.nn.Module):
    shape = (512, 20)

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(32000, 320)
        self.lstm = torch.nn.LSTM(320, 512, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, ids):
        return self.lstm(self.embed(ids))[0].max(1).values


class Transformer(torch.nn.Module):
    shape = (64, 64)

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(32000, 384)
        self.positions = torch.nn.Embedding(128, 384)
        self.norm = torch.nn.LayerNorm(384)
        layer = torch.nn.TransformerEncoderLayer(
            384, 12, dim_feedforward=1536, dropout=0.0, activation='gelu', batch_first=True
        )
        self.layers = torch.nn.TransformerEncoder(layer, 6)

    def forward(self, ids):
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.layers(self.norm(self.embed(ids) + self.positions(places))).mean(1)


class Mean(torch.nn.Module):
    """Weighted means of embeddings, a layer, the additive margin softmax of LaBSE."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.EmbeddingBag(32000, 512, mode='sum', sparse=True)
        self.weights = torch.nn.Embedding(32000, 1, sparse=True)
        self.dense = torch.nn.Linear(512, 512)
        lengths = torch.tensor([5 + s * 7 % 40 for s in range(4096)])
        self.register_buffer('starts', torch.cumsum(lengths, 0) - lengths)
        self.register_buffer('owners', torch.repeat_interleave(torch.arange(4096), lengths))
        self.shape = (int(lengths.sum()),)

    def forward(self, ids):
        weights = self.weights(ids).squeeze(1).exp()
        sums = torch.zeros(4096, device=ids.device).index_add(0, self.owners, weights)
        pooled = self.embed(ids, self.starts, per_sample_weights=weights) / sums.unsqueeze(1)
        x, y = torch.nn.functional.normalize(torch.tanh(self.dense(pooled)).float()).split(2048)
        scores = 20 * (x @ y.T - 0.3 * torch.eye(2048, device=ids.device))
        wanted = torch.arange(2048, device=ids.device)
        cross_entropy = torch.nn.functional.cross_entropy
        return cross_entropy(scores, wanted) + cross_entropy(scores.T, wanted)


class Decoder(torch.nn.Module):
    shape = (64, 21)

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(40000, 320)
        self.languages = torch.nn.Embedding(2, 32)
        self.first = torch.nn.Linear(1024, 2 * 1024)
        self.lstm = torch.nn.LSTM(320 + 32 + 1024, 1024, batch_first=True)
        self.output = torch.nn.Linear(1024, 40000)
        self.sentences = torch.nn.Parameter(torch.randn(64, 1024))

    def forward(self, ids):
        hidden, cell = (part.unsqueeze(0).contiguous() for part in self.first(self.sentences).chunk(2, 1))
        language = self.languages(torch.zeros_like(ids))
        sentence = self.sentences.unsqueeze(1).expand(-1, ids.shape[1], -1)
        inputs = torch.cat([self.embed(ids), language, sentence], 2)
        scores = self.output(self.lstm(inputs, (hidden, cell))[0])
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1).float(), ids.flatten())


network = {'lstm': Lstm, 'transformer': Transformer, 'mean': Mean, 'decoder': Decoder}[model]().to(device)
tables = [network.embed.weight, network.weights.weight] if model == 'mean' else []
others = [p for p in network.parameters() if all(p is not table for table in tables)]
optimizers = [torch.optim.Adam(others, lr=1e-3)]
if tables:
    optimizers.append(torch.optim.SparseAdam(tables, lr=1e-3))
ids = torch.randint(0, 32000, network.shape)


def step():
    with torch.autocast(device, dtype=torch.bfloat16, enabled=kind == 'bf16'):
        out = network(ids.to(device))
    for optimizer in optimizers:
        optimizer.zero_grad()
    # That of a scalar is a loss, of anything else a square makes one.
    loss = out if out.dim() == 0 else (out.float() ** 2).mean()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    if device != 'cpu':
        torch.cuda.synchronize()


try:
    step()
except RuntimeError:
    # oneDNN has no bf16 LSTM for processors without bf16 instructions; PyTorch's own has.
    torch.backends.mkldnn.set_flags(False)
    step()
wall = cpu = 1e9
for _ in range(runs):
    begin, begin_cpu = time.perf_counter(), time.process_time()
    step()
    wall, cpu = min(wall, time.perf_counter() - begin), min(cpu, time.process_time() - begin_cpu)
print(wall, cpu)
