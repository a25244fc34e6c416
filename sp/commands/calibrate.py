"""`sp calibrate`: find the layers and heads of a drafter that retrieve facts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from sp.commands.common import OnDevice, compile_kernels
from sp.commands.shell.outputs import check_folder
from sp.commands.shell.parser import arg, opt
from sp.commands.shell.terminal import AsJson, print_json, progress_bar
from sp.errors import ConfigError


def calibrate(
    file: Annotated[Path | None, arg("A GGUF file; the embedded drafter if omitted.")] = None,
    out: Annotated[
        Path | None,
        opt("-o", "--out", writes="file", help="Write to this file in place of the cache, where the scorer reads it."),
    ] = None,
    texts: Annotated[
        int | None,
        opt("-n", "--texts", least=1, most=64, help="Texts of each kind; if omitted 1 on the CPU, 4 on a GPU."),
    ] = None,
    seed: Annotated[int, opt(least=0, help="Seed of texts and needles.")] = 0,
    device: OnDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure which layers and heads of a drafter find facts in a text, for the scorer calibrated.

    The drafter reads generated texts of four kinds, with eight facts each, and a question about every fact. Layers or
    heads, with or without rotary embedding, are chosen by their results on held-out phrasings and kinds of text. The
    result is stored by the SHA-256 of the file, so that it applies to copies of the file, too.

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

    if out is None:
        check_folder(folder(), "SP_CACHE_DIR")
    if pick_device(device) == "cuda":
        compile_kernels()
    loaded = load(file or embedded("drafter"), extrapolate=True, device=device)  # the drafter as `sp run` loads it
    calibration = measured(loaded.path, loaded.model, loaded.tokenizer, loaded.template, progress_bar, texts, seed)
    if out is not None:
        calibration.save(out)
    path = keep_calibration(calibration) if out is None else out
    if path is None:
        raise ConfigError(
            f"cannot write below {folder()}; set SP_CACHE_DIR to a writable folder, or pass a file with -o"
        )
    if as_json:
        print_json(calibration.as_dict() | {"kept": str(path)})
        return
    heads, count = loaded.model.config.heads, loaded.model.config.layers
    layers = [
        f"{layer}" if len(own) == heads else f"{layer} (heads {', '.join(map(str, own))})"
        for layer, own in sorted(calibration.heads.items())
    ]
    rotary = "with rotary embedding" if calibration.rotary == "post" else "without rotary embedding"
    print(f"{loaded.path.name}: layers {', '.join(layers)}, {rotary}; {calibration.depth} of {count} layers run")
    print(f"chosen: {calibration.made['chosen']}")
    print(
        f"held out, {calibration.n} questions: {100 * calibration.top_5_percent:.0f} % of needles in the top 5 % of "
        f"chunks, median rank {100 * calibration.rank:.1f} %"
    )
    if calibration.scorer != "calibrated":
        print(f"scorer auto uses {calibration.scorer} with this file; --scorer calibrated uses this calibration")
    print(f"written to {path}")
