"""PyTorch and ONNX Runtime beside laser: a model of a shape or a checkpoint, on token sequences.

The argument is a JSON file (see mod.rs). Prints a line for each measurement: peer, precision, case,
wall seconds, CPU seconds, calls.
"""
import json, os, resource, sys, tempfile, time, warnings

warnings.filterwarnings("ignore")
import torch
import transformers
from transformers import AutoModel, BertModel
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()
task = json.load(open(sys.argv[1]))
torch.set_num_threads(task["threads"])
torch.set_grad_enabled(False)


class Mean(torch.nn.Module):
    """Mean of the states of a sentence's own tokens."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, input_ids, attention_mask):
        states = self.inner(
            input_ids=input_ids, attention_mask=attention_mask, return_dict=False
        )[0]
        own = attention_mask.unsqueeze(-1).to(states.dtype)
        return (states * own).sum(1) / own.sum(1)


def padded(sequences):
    longest = max(map(len, sequences))
    ids = [s + [0] * (longest - len(s)) for s in sequences]
    mask = [[1] * len(s) + [0] * (longest - len(s)) for s in sequences]
    return torch.tensor(ids), torch.tensor(mask)


if task["checkpoint"]:
    inner = BertModel.from_pretrained(task["checkpoint"], add_pooling_layer=False)
else:
    shape = getattr(transformers, task["kind"])(vocab_size=task["vocabulary"], **task["shape"])
    only = {"add_pooling_layer": False} if task["kind"] == "BertConfig" else {}
    inner = AutoModel.from_config(shape, **only)
model = Mean(inner.eval())
if task["reference"]:
    rows = []
    for sequence in task["reference"]["ids"]:
        rows.append(model(*padded([sequence]))[0])
    torch.stack(rows).numpy().astype("<f4").tofile(task["reference"]["out"])
device = task["device"]
model = model.to(device)
# From host memory, and back there: nothing but the copy waits for a GPU.
forward = lambda case: model(*(t.to(device) for t in case)).cpu()
cases = [padded(case) for case in task["cases"]]


def measure(peer, precision, call):
    for number, case in enumerate(cases):
        cpu = lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        call(case)
        start, before, calls = time.perf_counter(), cpu(), 0
        while time.perf_counter() - start < task["seconds"] or calls == 0:
            call(case)
            calls += 1
        wall = time.perf_counter() - start
        print(peer, precision, number, wall, cpu() - before, calls, flush=True)


measure("PyTorch", "f32", forward)
if device != "cpu":
    model = model.to(torch.bfloat16)
    measure("PyTorch", "bf16", forward)
    sys.exit()
# Before ONNX Runtime: behind it PyTorch's bf16 is several times slower.
# Without a bf16 unit PyTorch takes minutes for one larger batch.
if torch.ops.mkldnn._is_mkldnn_bf16_supported():
    model = model.to(torch.bfloat16)
    measure("PyTorch", "bf16", forward)
    model = model.float()
try:
    import onnxruntime as ort
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        exact, rounded = os.path.join(folder, "f32"), os.path.join(folder, "i8")
        names = ["input_ids", "attention_mask"]
        axes = {name: {0: "batch", 1: "tokens"} for name in names} | {"out": {0: "batch"}}
        torch.onnx.export(
            model, cases[0], exact, input_names=names, output_names=["out"],
            dynamic_axes=axes, opset_version=17, dynamo=False,
        )
        quantize_dynamic(exact, rounded, weight_type=QuantType.QInt8)
        options = ort.SessionOptions()
        options.intra_op_num_threads = task["threads"]
        options.inter_op_num_threads = 1
        session = ort.InferenceSession(rounded, options, providers=["CPUExecutionProvider"])
        feed = lambda case: {n: t.numpy() for n, t in zip(names, case)}
        measure("ONNX-Runtime", "i8", lambda case: session.run(None, feed(case)))
except ImportError as error:
    print(f"ONNX Runtime was not measured: {error}", file=sys.stderr)
