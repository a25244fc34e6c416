"""Train the draft of the target: ``python fit_draft.py CONFIG.yaml DATA ASSETS OUT [--heads MAP.json] [--init FILE]``.

No head of the draft is shown what to copy; where a map of the target's heads is given (``sp heads ASSETS/target.gguf -o
MAP.json``), the draft starts from the match that the two best heads of one layer were found to make, and is fed by what
that layer reads. Prints and writes one JSON line every few seconds (``OUT/train_NAME.jsonl``); the weights go to
``OUT/NAME.pt`` (bf16).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import yaml
from draft import Draft, DraftConfig, start_from_heads
from draft_export import load_draft_weights
from draft_step import DraftStage, DraftStepper, Features, choose
from feed import Feed
from shapes import Reader, build
from tokenizer import Encoder
from weights import load_quantised

from sp.scoring.attention.heads import HeadMap


def best_heads(found: HeadMap, most: int = 2) -> tuple[int, tuple[int, ...]]:
    """The layer whose best heads retrieve best together, and these heads; not layer 0, which reads only tokens.

    Examples
    --------
    >>> best_heads(HeadMap("", {0: (1.0, 1.0), 3: (0.1, 0.8, 0.7), 5: (0.9, 0.0, 0.2)}))
    (3, (1, 2))
    """
    ranked = {layer: sorted(range(len(row)), key=lambda head: -row[head])[:most] for layer, row in found.scores.items()}
    layer = max((one for one in ranked if one), key=lambda one: sum(found.scores[one][head] for head in ranked[one]))
    return layer, tuple(ranked[layer])


def fed_by(shape: DraftConfig, layer: int) -> DraftConfig:
    """The shape with the output of the layer before `layer` among its features, in place of the nearest.

    Examples
    --------
    >>> fed_by(DraftConfig(target_layers=(2, 6, 10)), 9).target_layers
    (2, 6, 8)
    """
    ranked = sorted(shape.target_layers, key=lambda one: -abs(one - (layer - 1)))
    return replace(shape, target_layers=tuple(sorted({*ranked[:-1], layer - 1})))


def save(draft: Draft, path: Path) -> None:
    """Weights and shape, replaced at once."""
    tensors = {
        k: v.detach().to(torch.bfloat16 if v.ndim == 2 else torch.float32).cpu() for k, v in draft.named().items()
    }
    tmp = path.with_suffix(".tmp")
    torch.save({"config": vars(draft.config), "tensors": tensors}, tmp)
    os.replace(tmp, path)


def config_of(cfg: dict) -> DraftConfig:
    """The shape that a configuration asks for."""
    given = dict(cfg.get("shape", {}))
    if "target_layers" in given:
        given["target_layers"] = tuple(given["target_layers"])
    return DraftConfig(**given)


def train(
    args: argparse.Namespace,
    cfg: dict,
    stages: Sequence[DraftStage],
    feed: Feed,
    shape: DraftConfig,
    start: Callable[[Draft, Reader], None] | None,
) -> None:
    """Run the stages on the batches of a feed that was started before the GPU was touched.

    ``start`` sets the draft's first weights where none are given.
    """
    started, seed, name = time.time(), cfg["seed"], args.config.stem
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cuda.enable_cudnn_sdp(False)
    args.out.mkdir(parents=True, exist_ok=True)
    cuda = args.device == "cuda"
    compute = torch.bfloat16 if cuda else torch.float32
    target = load_quantised(build("target", compute), args.assets / "target.gguf").eval()
    target.requires_grad_(False)
    draft = Draft(shape, compute)
    if args.init:
        load_draft_weights(draft, args.init)
    else:
        with torch.no_grad():
            draft.p["output_norm/weight"].copy_(target.p["output_norm/weight"])
        if start:
            start(draft, target)
    target.to(args.device)
    draft.to(args.device).train()
    optimiser = torch.optim.AdamW(draft.groups(cfg.get("weight_decay", 0.05)), betas=(0.9, 0.95), fused=cuda)
    log = (args.out / f"train_{name}.jsonl").open("a")

    def emit(record: dict) -> None:
        line = json.dumps(record)
        print(line, flush=True)
        log.write(line + "\n")
        log.flush()

    emit({"role": "draft", "config": cfg, "shape": vars(draft.config), "torch": torch.__version__,
          "parameters": sum(v.numel() for v in draft.parameters()),
          "device": torch.cuda.get_device_name() if cuda else "cpu", "init": str(args.init or ""),
          "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})  # fmt: skip
    step, tokens, waited = 0, 0, 0.0
    for i, stage in enumerate(stages):
        feed.current.value = i
        reader = Features(target, draft.config.target_layers, stage.slots, args.device)
        reader.take(feed.next())
        stepper = DraftStepper(draft, target, optimiser, stage)
        begin = last = time.time()
        limit, local = stage.seconds * args.seconds_scale, 0
        while (used := time.time() - begin) < limit:
            if local and local % stage.reuse == 0:
                t = time.time()
                batch = feed.next()
                waited += time.time() - t
                reader.take(batch)
                tokens += stage.batch * stage.length
            slot = int(rng.integers(len(reader.slots)))
            warm = min(1.0, local / stage.warmup)
            rate = stage.lr * warm * (1 - (1 - stage.final_lr) * min(1.0, used / limit))
            for group in optimiser.param_groups:
                group["lr"] = rate
            stepper(reader.slots[slot], choose(*reader.hosts[slot], stage.blocks, stage.first, rng))
            local, step = local + 1, step + 1
            if cuda and local % 4 == 0:
                torch.cuda.synchronize()
            if time.time() - last > cfg.get("log_seconds", 4.0):
                found = stepper.report()
                emit({"stage": stage.name, "step": step, "tokens": tokens, "seconds": round(time.time() - started, 1),
                      **found, "lr": round(rate, 6), "waited": round(waited, 1)})  # fmt: skip
                last = time.time()
                if not math.isfinite(found["loss"]):
                    raise SystemExit("loss is not finite")
                save(draft, args.out / f"{name}.pt")
        del stepper, reader
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            emit({"stage_end": stage.name, "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2)})
        save(draft, args.out / f"{name}.pt")
    feed.stop()
    emit({"done": name, "steps": step, "tokens": tokens, "seconds": round(time.time() - started, 1)})


def main() -> None:
    """Read the command line and train."""
    a = argparse.ArgumentParser()
    a.add_argument("config", type=Path)
    a.add_argument("data", type=Path)
    a.add_argument("assets", type=Path)
    a.add_argument("out", type=Path)
    a.add_argument("--device", default="cuda")
    a.add_argument("--init", type=Path)
    a.add_argument("--workers", type=int, default=6)
    a.add_argument("--seconds-scale", type=float, default=1.0)
    a.add_argument("--first-stage", type=int, default=0)
    a.add_argument("--heads", type=Path, help="map of the target's heads to start from")
    args = a.parse_args()
    cfg = yaml.safe_load(args.config.read_text())
    mix = cfg.get("mix", {})
    stages = [DraftStage(**{**s, "mix": {**mix, **s.get("mix", {})}}) for s in cfg["stages"]][args.first_stage :]
    batches = Feed(args.data, stages, args.workers, cfg["seed"])  # before CUDA
    shape = replace(config_of(cfg), mask_id=Encoder(args.data / "vocabulary.json").end_of_text)
    start = None
    if args.heads:
        layer, heads = best_heads(HeadMap.load(args.heads))
        shape = fed_by(shape, layer)

        def start(draft: Draft, target: Reader) -> None:
            start_from_heads(draft, target, layer, heads)

    train(args, cfg, stages, batches, shape, start)


if __name__ == "__main__":
    main()
