"""Accuracy and needle recall of the *quantised* files: ``python evaluate.py PLAN.yaml DATA ASSETS OUT.jsonl``.

Exact match is measured with one forward a sample: greedy decoding reproduces the reference answer (values, full stop,
``<|im_end|>``) if and only if every reference token is the arg max after the reference tokens before it. One prompt
asks one question, so no answer can be had by elimination. Words of the keys and all haystack text are held out.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing as mp
import random
import time
from pathlib import Path

import numpy as np
import torch
import yaml
from batches import apply_mask, kept_mask
from pieces import Bank, Composer, Recipe, Sample
from tokenizer import Encoder

POOL, SCORE_CHUNK, QUERIES = 13, 32, 8


def wilson(k: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson score interval of k successes in n."""
    p, d = k / n, 1 + z * z / n
    mid, half = (p + z * z / (2 * n)) / d, z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / d
    return round(mid - half, 4), round(mid + half, 4)


class Drawer:
    """Draws evaluation samples in worker processes."""

    def __init__(self, role: str, data: Path) -> None:
        self.encoder = Encoder(data / f"{role}.json")
        self.bank = Bank.load(self.encoder, data / "bank.json", "held_out")

    def __call__(self, job: tuple[dict, int, int]) -> Sample:
        recipe, length, seed = job
        composer = Composer(self.encoder, self.bank, seed)
        for attempt in range(400):
            s = composer.sample(Recipe(length=length, held_out=True, **recipe))
            if 0.85 * length <= len(s.ids) <= length + (16 if attempt < 200 else 0.1 * length):
                return s
        raise RuntimeError(f"no sample of {length} tokens for {recipe}")


def padded(items: list[dict], pad: int, device: str) -> dict[str, torch.Tensor]:
    n = -(-max(len(i["ids"]) for i in items) // 64) * 64
    k = max(len(i["rows"]) for i in items)
    ids = np.full((len(items), n), pad, np.int64)
    positions = np.zeros((len(items), n), np.int64)
    rows = np.zeros((len(items), k), np.int64)
    for j, it in enumerate(items):
        m = len(it["ids"])
        ids[j, :m], positions[j, :m] = it["ids"], it["positions"]
        positions[j, m:] = it["positions"][-1]
        rows[j, : len(it["rows"])] = it["rows"]
    return {k: torch.from_numpy(v).to(device) for k, v in (("ids", ids), ("positions", positions), ("rows", rows))}


@torch.no_grad()
def right(model, items: list[dict], pad: int, device: str) -> list[bool]:
    b = padded(items, pad, device)
    best = model(b["ids"], b["positions"], b["rows"])[0].argmax(-1).cpu().numpy()
    return [bool((best[j, : len(it["rows"])] == it["ids"][it["rows"] + 1]).all()) for j, it in enumerate(items)]


@torch.no_grad()
def found(model, samples: list[Sample], encoder: Encoder, device: str, size: int, limit: int = 56) -> list[float]:
    """Greedy generation; the share of reference values in the output in any order (RULER's string_match_all)."""
    out = []
    for i in range(0, len(samples), size):
        group = samples[i : i + size]
        grown = [list(s.ids[: s.prompt_end]) for s in group]
        done = [False] * len(group)
        for _ in range(limit):
            items = [
                {"ids": np.array(g), "positions": np.arange(len(g)), "rows": np.array([len(g) - 1])} for g in grown
            ]
            b = padded(items, encoder.end_of_text, device)
            nxt = model(b["ids"], b["positions"], b["rows"])[0][:, 0].argmax(-1).tolist()
            for j, t in enumerate(nxt):
                done[j] = done[j] or t == encoder.end
                if not done[j]:
                    grown[j].append(t)
            if all(done):
                break
        for s, g in zip(group, grown, strict=True):
            text = encoder.decode(g[s.prompt_end :]).lower()
            turn = s.turns[0]
            wanted = turn.names or [s.needles[k].value for k in turn.needles]
            out.append(sum(w.lower() in text for w in wanted) / len(wanted))
    return out


def importance(taps: list[torch.Tensor], prompt: int) -> torch.Tensor:
    """Max over layers and heads, mean over queries, mean-pooled: (B, prompt)."""
    top = torch.stack([t[..., :prompt].amax(1) for t in taps]).amax(0)
    return torch.nn.functional.avg_pool1d(top.mean(1)[:, None], POOL, 1, POOL // 2, count_include_pad=False)[:, 0]


def kept_tokens(score: np.ndarray, keep: float) -> np.ndarray:
    n = len(score)
    chunks = -(-n // SCORE_CHUNK)
    mean = np.array([score[i * SCORE_CHUNK : (i + 1) * SCORE_CHUNK].mean() for i in range(chunks)])
    best = np.argsort(-mean, kind="stable")[: max(1, math.ceil(keep * chunks))]
    mask = np.zeros(chunks, bool)
    mask[best] = True
    return np.repeat(mask, SCORE_CHUNK)[:n]


@torch.no_grad()
def recall(model, s: Sample, device: str, rng: random.Random) -> dict[str, bool]:
    """Are all value tokens of the asked needles kept? Scorers tail and lookahead, controls random and head+tail."""
    end = s.prompt_end
    wanted = sorted({x for x in s.source if x >= 0})
    ids = list(s.ids[:end])
    out: dict[str, bool] = {}

    def run(tokens: list[int], rows: list[int], taps: list | None) -> torch.Tensor:
        n = len(tokens)
        t = torch.tensor(tokens, device=device)[None]
        pos = torch.arange(n, device=device)[None]
        return model(t, pos, torch.tensor(rows, device=device)[None], None, taps)[0]

    scores = {}
    taps: list[torch.Tensor] = []
    logits = run(ids, list(range(end - QUERIES, end)), taps)
    scores["tail"] = importance(taps, end)[0].float().cpu().numpy()
    grown = [*ids, int(logits[0, -1].argmax())]
    while len(grown) < end + QUERIES - 1:
        grown.append(int(run(grown, [len(grown) - 1], None)[0, -1].argmax()))
    taps = []
    run(grown, list(range(end - 1, end + QUERIES - 1)), taps)
    scores["lookahead"] = importance(taps, end)[0].float().cpu().numpy()
    scores["random"] = np.repeat([rng.random() for _ in range(-(-end // SCORE_CHUNK))], SCORE_CHUNK)[:end]
    scores["head_tail"] = np.abs(np.arange(end) - end / 2)
    for keep in (0.05, 0.1):
        for name, score in scores.items():
            mask = kept_tokens(score, keep)
            out[f"{name}@{keep}"] = bool(mask[wanted].all())
    return out


def main() -> None:
    a = argparse.ArgumentParser()
    a.add_argument("plan", type=Path)
    a.add_argument("data", type=Path)
    a.add_argument("assets", type=Path)
    a.add_argument("out", type=Path)
    a.add_argument("--device", default="cuda")
    a.add_argument("--roles", default="target,drafter")
    a.add_argument("--scale", type=float, default=1.0, help="multiplies every n")
    a.add_argument("--lengths", default="")
    a.add_argument("--weights", type=Path, help="unquantised safetensors folder instead of the GGUF files")
    a.add_argument("--workers", type=int, default=14)
    args = a.parse_args()
    plan = yaml.safe_load(args.plan.read_text())
    only = {int(x) for x in args.lengths.split(",") if x}
    drawn = {}
    for role in args.roles.split(","):
        torch.set_num_threads(2 if args.device == "cuda" else torch.get_num_threads())
        drawer = Drawer(role, args.data)
        with mp.Pool(args.workers, initializer=_set, initargs=(drawer,)) as pool:
            for c, case in enumerate(plan["cases"]):
                if role not in case.get("roles", ["target", "drafter"]):
                    continue
                for length, n in case["n"].items():
                    if only and length not in only:
                        continue
                    n = max(2, int(n * args.scale))
                    jobs = [
                        (plan["recipe"] | case.get("recipe", {}), length, plan["seed"] + 7919 * c + 104729 * i + length)
                        for i in range(n)
                    ]
                    drawn[role, c, length] = pool.map(_draw, jobs, chunksize=4)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    from export import load_quantised, load_weights
    from models import build

    for role in args.roles.split(","):
        encoder = Encoder(args.data / f"{role}.json")
        model = build(role, torch.bfloat16 if args.device == "cuda" else torch.float32)
        if args.weights:
            load_weights(model, args.weights / f"{role}.safetensors")
        else:
            load_quantised(model, args.assets / f"{role}.gguf")
        model.to(args.device).eval()
        for (r, c, length), samples in drawn.items():
            if r != role:
                continue
            case = plan["cases"][c]
            started = time.time()
            rng = random.Random(length + c)
            items = []
            for s in samples:
                mask = np.ones(len(s.ids), bool)
                if keep := case.get("keep"):
                    mask = kept_mask(s, keep, rng, {i for t in s.turns for i in t.needles})
                items.append(apply_mask(s, mask, np.arange(len(s.ids))))
            size = max(1, min(32, plan["batch_tokens"] // (length if not case.get("keep") else length // 8)))
            hits = [
                h
                for i in range(0, len(items), size)
                for h in right(model, items[i : i + size], encoder.end_of_text, args.device)
            ]
            record = {
                "role": role, "task": case["name"], "length": length, "keep": case.get("keep", 1.0), "n": len(hits),
                "correct": sum(hits), "accuracy": round(sum(hits) / len(hits), 4),
                "interval": wilson(sum(hits), len(hits)),
                "mean_tokens": round(float(np.mean([len(i["ids"]) for i in items])), 1),
                "quantised": not args.weights, "seed": plan["seed"], "recipe": plan["recipe"] | case.get("recipe", {}),
                "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "torch": torch.__version__,
                "gpu": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
            }  # fmt: skip
            if case.get("generate"):
                share = found(model, samples, encoder, args.device, size)
                record["values_found"] = {
                    "mean": round(float(np.mean(share)), 4),
                    "all": sum(x == 1 for x in share),
                    "n": len(share),
                }
                print("  generated:", record["values_found"], flush=True)
            if role == "drafter" and case.get("recall", True) and not case.get("keep"):
                got = [recall(model, s, args.device, rng) for s in samples]
                record["recall"] = {
                    k: [sum(g[k] for g in got), len(got), *wilson(sum(g[k] for g in got), len(got))] for k in got[0]
                }
            record["seconds"] = round(time.time() - started, 2)
            with args.out.open("a") as f:
                f.write(json.dumps(record) + "\n")
            brief = {k.replace("lookahead", "la"): round(v[0] / v[1], 3) for k, v in record.get("recall", {}).items()}
            print(
                role,
                case["name"],
                length,
                "keep",
                record["keep"],
                f"{record['correct']}/{record['n']}",
                record["accuracy"],
                brief or "",
                flush=True,
            )


_drawer: Drawer | None = None


def _set(drawer: Drawer) -> None:
    global _drawer
    _drawer = drawer


def _draw(job: tuple[dict, int, int]) -> Sample:
    assert _drawer is not None
    return _drawer(job)


if __name__ == "__main__":
    main()
