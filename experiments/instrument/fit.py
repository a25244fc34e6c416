"""Train one model of the instrument: ``python fit.py CONFIG.yaml DATA OUT [--init FILE] [--limit SECONDS]``.

The loss is next-token cross-entropy, on answers and, at a small weight, on other tokens; no attention head is told
anything. Whole steps run as one CUDA graph a stage. One JSON line every few seconds goes to ``OUT/fit_ROLE.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from attention import FLASH, quicker, shape_of, use
from compose import LABELS
from feed import Feed, Stage
from in_turns import check_finite, rates, train
from layers import GGUFModule
from muon import Muon
from safetensors.torch import save_file
from shapes import build, formats, layer
from torch import Tensor
from weights import load_quantised, load_weights

KEYS = ("ids", "positions", "rows", "labels", "weight", "first", "kind")
BITS = {"Q8_0": 8, "Q6_K": 6, "Q4_K": 4}


class Step:
    """One optimiser step on buffers that stay; captured as a CUDA graph on a GPU."""

    def __init__(self, model: GGUFModule, optimisers: list[Any], stage: Stage, device: str) -> None:
        self.model, self.optimisers, self.device = model, optimisers, device
        self.graph: torch.cuda.CUDAGraph | None = None
        width = {"ids": stage.length, "positions": stage.length}
        self.buffer: dict[str, Tensor] = {}
        for key in KEYS:
            dtype = torch.float32 if key == "weight" else torch.int64
            shape = stage.batch, width.get(key, stage.rows + stage.lm_rows)
            self.buffer[key] = torch.zeros(*shape, dtype=dtype, device=device)
        self.sums = torch.zeros(3, device=device)  # loss, gradient norm, steps
        self.right = torch.zeros(2, 2 * len(LABELS), 2, device=device)  # first answer or later, kind, (right, all)
        self.parameters = list(model.parameters())

    def __call__(self, batch: dict[str, Any]) -> None:
        """Take a batch; the first call on a GPU warms up three times and captures."""
        for key, kept in self.buffer.items():
            given = torch.from_numpy(batch[key])
            kept.copy_(given.pin_memory() if self.device == "cuda" else given, non_blocking=True)
        if self.device != "cuda":
            self.run()
            return
        if self.graph is None:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self.run()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.run()
            self.forget()
        self.graph.replay()

    def run(self) -> None:
        """Forward, backward, clip, update."""
        b = self.buffer
        logits = self.model(b["ids"], b["positions"], b["rows"])
        nll = -logits.log_softmax(-1).gather(-1, b["labels"][..., None]).squeeze(-1)
        loss = (nll * b["weight"]).sum() / b["weight"].sum().clamp(min=1e-6)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        for one in self.optimisers:
            one.step()
        for p in self.parameters:
            if p.grad is not None:
                p.grad.zero_()
        with torch.no_grad():
            right = (logits.argmax(-1) == b["labels"]).float().flatten()
            self.sums += torch.stack([loss, norm, torch.ones_like(loss)])
            for turn in (1, 2):
                on = (b["first"] == turn).float().flatten()
                self.right[turn - 1].index_add_(0, b["kind"].flatten(), torch.stack([right * on, on], -1))

    def forget(self) -> None:
        """Set the sums to zero."""
        self.sums.zero_()
        self.right.zero_()

    def seen(self) -> dict[str, Any]:
        """Means since the last call."""
        loss, norm, steps = self.sums.tolist()
        right = self.right.tolist()
        self.forget()
        n = max(steps, 1)
        total = [sum(one) for one in zip(*(pair for turn in right for pair in turn), strict=True)]
        found: dict[str, Any] = {"loss": round(loss / n, 4), "grad": round(norm / n, 3)}
        found["first_acc"] = round(total[0] / max(total[1], 1), 4)
        for label, turns in (("asked_first", right[:1]), ("asked_later", right[1:])):
            rows = [pair for turn in turns for pair in turn]
            found[label] = {
                f"{LABELS[k // 2]}{'!' if k % 2 else ''}": round(a / z, 3) for k, (a, z) in enumerate(rows) if z
            }
        return found


def optimisers_of(model: GGUFModule, decay: float, rate: Tensor, muon: Tensor, fused: bool) -> list[Any]:
    """Muon for the matrices between the layers, AdamW for the rest."""
    named = model.named()
    matrices = [v for k, v in named.items() if v.ndim == 2 and "blk" in k and "conv" not in k and min(v.shape) > 16]
    inside = {id(one) for one in matrices}
    rest = [v for v in named.values() if id(v) not in inside]
    adam = torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=fused, capturable=fused)
    for group in adam.param_groups:
        group["lr"] = rate
    return [Muon(matrices, muon, decay=decay), adam]


def save(model: GGUFModule, path: Path) -> None:
    """Write the weights, matrices in bf16, in one step."""
    tensors = {
        k: v.detach().to(torch.bfloat16 if v.ndim == 2 else torch.float32).cpu().contiguous()
        for k, v in model.named().items()
    }
    save_file(tensors, path.with_suffix(".tmp"))
    os.replace(path.with_suffix(".tmp"), path)


def main() -> None:
    """Run the stages of a configuration."""
    a = argparse.ArgumentParser()
    a.add_argument("config", type=Path)
    a.add_argument("data", type=Path)
    a.add_argument("out", type=Path)
    a.add_argument("--device", default="cuda")
    a.add_argument("--init", type=Path)
    a.add_argument("--workers", type=int, default=13)
    a.add_argument("--flash", action="store_true", help="take flash attention without asking which kernel is quicker")
    a.add_argument("--seed", type=int, help="in place of the configuration's, for another draw of the same training")
    a.add_argument("--pace", type=float, default=1.0, help="share of every stage's seconds that is trained")
    a.add_argument("--limit", type=float, default=1e9, help="seconds after which everything ends")
    args = a.parse_args()
    began = time.time()
    cfg = yaml.safe_load(args.config.read_text())
    if args.seed is not None:
        cfg["seed"] = args.seed
    role, gpu = cfg["role"], args.device == "cuda"
    mix = cfg.get("mix", {})
    for stage in cfg["stages"]:
        stage["seconds"] *= args.pace
    stages = [Stage(**{**s, "mix": {**mix, **s.get("mix", {})}}) for s in cfg["stages"]]
    turns = "together" in cfg
    if turns:  # before CUDA
        feeds = [Feed(args.data, [s], s.workers, cfg["seed"] + 100 * i) for i, s in enumerate(stages)]
    else:
        feeds = [Feed(args.data, stages, args.workers, cfg["seed"])]
    torch.manual_seed(cfg["seed"])
    torch.backends.cuda.matmul.allow_tf32 = True
    if gpu:
        use(FLASH)
    args.out.mkdir(parents=True, exist_ok=True)
    model = build(role, torch.bfloat16 if gpu else torch.float32)
    if args.init:
        (load_quantised if args.init.suffix == ".gguf" else load_weights)(model, args.init)
    model.to(args.device).train()
    if gpu:  # fuses what is element-wise: most of a step's memory traffic
        torch._dynamo.config.cache_size_limit = 64
        model.run = torch.compile(layer, dynamic=False)
    rate, matrix_rate = (torch.zeros((), device=args.device) for _ in range(2))
    optimisers = optimisers_of(model, cfg.get("decay", 0.1), rate, matrix_rate, gpu)
    log = (args.out / f"fit_{role}.jsonl").open("a")
    step, tokens = 0, 0

    def emit(record: dict[str, Any]) -> None:
        log.write(json.dumps(record) + "\n")
        log.flush()
        print(json.dumps(record), flush=True)

    gpu = torch.cuda.get_device_name() if gpu else "cpu"
    day = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    init = args.init.name if args.init else None
    emit({"role": role, "config": cfg, "torch": torch.__version__, "device": gpu, "date": day, "init": init})

    def set_rates(adam: float, matrices: float) -> None:
        rate.fill_(adam)
        matrix_rate.fill_(matrices)

    def begin(stage: Stage) -> Step:
        """The step of a stage, with the attention kernel and the formats that it asks for."""
        if gpu and not args.flash:
            taken, told = quicker(shape_of(stage, role))
            torch.cuda.empty_cache()
            use(taken)
            emit({"stage_begin": stage.name} | told)
        packed = formats(model, role) if stage.quantise else {}
        model.bits = {name: BITS[fmt.name] for name, fmt in packed.items() if fmt.name in BITS}
        return Step(model, optimisers, stage, args.device)

    if turns:

        def left() -> float:
            return min(cfg["together"] * args.pace, began + args.limit - time.time())

        sync = torch.cuda.synchronize if gpu else lambda: None
        for more in train(stages, feeds, begin, left, set_rates, emit, cfg.get("log_seconds", 15.0), sync):
            step, tokens = step + 1, tokens + more
        if gpu:
            emit({"stage_end": "together", "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2)})
        save(model, args.out / f"{role}.safetensors")
    for i, stage in enumerate([] if turns else stages):
        if time.time() - began > args.limit:
            break
        feeds[0].current.value = i
        batches, one = feeds[0], begin(stage)
        set_rates(0.0, 0.0)
        start = last = time.time()
        local, waited, best = 0, 0.0, 0.0
        while (used := time.time() - start) < stage.seconds and best <= stage.until:
            if time.time() - began > args.limit:
                break
            t = time.time()
            batch = batches.next()
            waited += time.time() - t
            if local == 1:
                start = time.time()  # compiling, the capture and the first batch are no training
            if local > 4:
                set_rates(*rates(stage, local, used / stage.seconds))
            one(batch)
            local, step, tokens = local + 1, step + 1, tokens + stage.batch * stage.length
            if gpu and local % 4 == 0:
                torch.cuda.synchronize()
            if time.time() - last > cfg.get("log_seconds", 5.0):
                seen = one.seen()
                best = seen["first_acc"]
                emit({"stage": stage.name, "step": step, "tokens": tokens, "seconds": round(time.time() - began, 1)}
                     | seen | {"lr": round(rate.item(), 6), "waited": round(waited, 1)})  # fmt: skip
                last = time.time()
                check_finite(seen)
        del one
        if gpu:
            torch.cuda.synchronize()
            emit({"stage_end": stage.name, "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2)})
            torch.cuda.empty_cache()
        save(model, args.out / f"{role}.safetensors")
    for one_feed in feeds:
        one_feed.stop()
    emit({"done": role, "steps": step, "tokens": tokens, "seconds": round(time.time() - began, 1)})


if __name__ == "__main__":
    main()
