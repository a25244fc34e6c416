"""`sp calibrate`: which layers and heads of a drafter find what a question asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from sp.commands.asked import OnDevice, compile_kernels
from sp.commands.shell.line import arg, opt
from sp.commands.shell.terminal import AsJson, check_file, check_folder, print_json, progress_bar
from sp.errors import ConfigError


def calibrate(
    file: Annotated[Path | None, arg("A GGUF file; the embedded drafter if left out.")] = None,
    out: Annotated[
        Path | None, opt("-o", "--out", help="Write it to this file, not to where the scorer looks for it.")
    ] = None,
    texts: Annotated[
        int | None,
        opt("-n", "--texts", least=1, most=64, help="Texts of each kind; 1 on the CPU, 4 on a GPU if left out."),
    ] = None,
    seed: Annotated[int, opt(least=0, help="What texts and needles are drawn from.")] = 0,
    device: OnDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure which layers and heads of a drafter find facts in a text, for the scorer `calibrated`.

    It reads generated texts of four kinds, each with eight facts, and asks for every one of them. Layers or heads,
    rotated or not, are chosen so that it holds on phrasings and kinds of text that were left out. The result is kept
    for the file, and found by its sha256 wherever that lies.

    Examples
    --------
      sp calibrate
      sp calibrate SmolLM2-135M-Instruct.Q4_1.gguf -n 3
      sp run --drafter SmolLM2-135M-Instruct.Q4_1.gguf --scorer calibrated ...
    """
    from sp.kernels.device import pick_device
    from sp.scoring.calibration.measure import measured
    from sp.scoring.calibration.record import folder, keep_calibration
    from sp.session.loaded import embedded, load

    check_file(out, "--out")
    check_folder(folder() if out is None else None, "SP_CACHE_DIR")
    if pick_device(device) == "cuda":
        compile_kernels()
    loaded = load(file or embedded("drafter"), extrapolate=True, device=device)
    made = measured(loaded.path, loaded.model, loaded.tokenizer, loaded.template, progress_bar, texts, seed)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        made.save(out)
    kept = keep_calibration(made) if out is None else out
    if kept is None:
        raise ConfigError(f"cannot write below {folder()}; name a writable folder in SP_CACHE_DIR, or a file with -o")
    if as_json:
        print_json(made.as_dict() | {"kept": str(kept)})
        return
    heads, every = loaded.model.config.heads, loaded.model.config.layers
    layers = [
        f"{layer}" if len(own) == heads else f"{layer} (heads {', '.join(map(str, own))})"
        for layer, own in sorted(made.heads.items())
    ]
    turned = "with rotary embedding" if made.rotary == "post" else "without rotary embedding"
    print(f"{loaded.path.name}: layers {', '.join(layers)}, {turned}; {made.depth} of {every} are run")
    print(f"chosen: {made.made['chosen']}")
    print(
        f"left out, {made.n} questions: {100 * made.top_5_percent:.0f} % of needles among the first 5 % of the chunks, "
        f"median rank {100 * made.rank:.1f} %"
    )
    if made.scorer != "calibrated":
        print(f"scorer auto still takes {made.scorer} with this file; --scorer calibrated goes by what was measured")
    print(f"written to {kept}")
