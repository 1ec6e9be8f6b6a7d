"""A mean, and a mean with a gated BiLSTM, as the encoder computes them (`laser_model::config::ResidualBilstmConfig`)."""
import torch
import torch.nn.functional as F

UNITS = 128  # of each direction


class Model(torch.nn.Module):
    """`normalize(m + g (P r + b))`; without `pooling` (max or last) the mean alone."""

    def __init__(self, tensors, pooling, ngrams_from, gate, dropout):
        super().__init__()
        self.table = torch.nn.Parameter(tensors["embed_tokens.weight"].float())
        self.weight = torch.nn.Parameter(tensors["token_weight"].float())
        self.pooling, self.ngrams_from, self.dropout = pooling, ngrams_from, dropout
        if pooling:
            width = self.table.shape[1]
            self.lstm = torch.nn.LSTM(width, UNITS, bidirectional=True)
            self.projection = torch.nn.Linear(2 * UNITS, width)
            self.gate = torch.nn.Parameter(torch.full((1,), gate))
            # What is new begins as nothing.
            torch.nn.init.zeros_(self.projection.weight)
            torch.nn.init.zeros_(self.projection.bias)
            with torch.no_grad():
                for suffix in ("", "_reverse"):
                    getattr(self.lstm, "bias_ih_l0" + suffix)[UNITS : 2 * UNITS] = 1.0
                if "gate" in tensors:
                    for name, parameter in self.lstm.named_parameters():
                        parameter.copy_(tensors["lstm." + name].float())
                    self.projection.weight.copy_(tensors["projection.weight"].float())
                    self.projection.bias.copy_(tensors["projection.bias"].float())
                    self.gate.copy_(tensors["gate"])

    def above(self):
        """Matrices and biases of the BiLSTM and of its projection."""
        return [*self.lstm.parameters(), *self.projection.parameters()] if self.pooling else []

    def forward(self, tokens, sentence, first, count, left_out=0.0):
        """Embeddings of unit length. `tokens` of all sentences, the sentence of each, the first token of each sentence;
        tokens count nothing with the probability `left_out`."""
        factors = self.weight[tokens].exp()
        if left_out:
            factors = factors * (torch.rand_like(factors) >= left_out)
        total = factors.new_zeros(count).index_add(0, sentence, factors).clamp_min(1e-9)[:, None]
        if not self.pooling:
            sums = F.embedding_bag(tokens, self.table, first, mode="sum", per_sample_weights=factors)
            return F.normalize(sums / total)
        # A step is a piece with the n-grams behind it.
        begins = tokens < self.ngrams_from
        begins[first] = True
        starts, step = torch.nonzero(begins)[:, 0], torch.cumsum(begins, 0) - 1
        of = sentence[starts]
        sums = F.embedding_bag(tokens, self.table, starts, mode="sum", per_sample_weights=factors)
        shares = factors.new_zeros(len(starts)).index_add(0, step, factors)
        mean = sums.new_zeros(count, sums.shape[1]).index_add(0, of, sums) / total
        states = self.states(sums / shares.clamp_min(1e-9)[:, None], of, count)
        states = F.dropout(states, self.dropout, self.training)
        return F.normalize(mean + self.gate * self.projection(states))

    def states(self, inputs, of, count):
        """Pooled states, [count, 2 UNITS]; `of` is the sentence of each input, none without inputs."""
        lengths = torch.bincount(of, minlength=count)
        lengths, order = torch.sort(lengths, descending=True)
        first = torch.cumsum(torch.bincount(of, minlength=count), 0)[order] - lengths
        time = torch.arange(int(lengths[0]), device=of.device)[:, None]
        present = time < lengths
        packed = torch.nn.utils.rnn.PackedSequence(inputs[(first + time)[present]], present.sum(1).cpu())
        with torch.autocast(of.device.type, torch.bfloat16):
            out, (last, _) = self.lstm(packed)
        if self.pooling == "last":
            sorted_states = torch.cat([last[0], last[1]], 1).float()
        else:
            rank = torch.arange(count, device=of.device).expand(present.shape)[present]
            sorted_states = inputs.new_full((count, 2 * UNITS), -1e4)
            where = rank[:, None].expand(-1, 2 * UNITS)
            sorted_states = sorted_states.scatter_reduce(0, where, out.data.float(), "amax")
        return torch.empty_like(sorted_states).index_copy(0, order, sorted_states)

    def tensors(self):
        """As in a model folder, with int8 rows."""
        table = self.table.detach().cpu()
        scale = table.abs().amax(1).clamp_min(1e-12) / 127
        result = {
            "embed_tokens.weight": torch.round(table / scale[:, None]).clamp(-127, 127).to(torch.int8),
            "embed_tokens.weight.scale": scale,
            "token_weight": self.weight.detach().cpu(),
        }
        if self.pooling:
            for name, parameter in self.lstm.named_parameters():
                result["lstm." + name] = parameter.detach().cpu()
            result["projection.weight"] = self.projection.weight.detach().cpu()
            result["projection.bias"] = self.projection.bias.detach().cpu()
            result["gate"] = self.gate.detach().cpu()
        return result

    def config(self):
        config = {"architecture": "mean", "embedding_size": self.table.shape[1], "pooling": "weighted"}
        if self.pooling:
            config |= {
                "architecture": "residual_bilstm",
                "hidden_size": UNITS,
                "layers": 1,
                "state_pooling": self.pooling,
                "ngrams_from": self.ngrams_from,
            }
        return config
