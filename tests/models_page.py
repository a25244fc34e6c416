"""The tables of docs/models.md, made from registries, fixtures and the tests themselves; run it to print them anew."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from pathlib import Path

from sp.quant import BlockFormat
from sp.studies.tables.page import insert_between

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "models.md"
EVERY_TYPE = ("tiny-qwen35", "f32")
"""Of tests/gpu/test_weight_formats.py: the shape it takes in every file type, and the type it leaves out."""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def constants(path: Path) -> dict[str, object]:
    """Tuples and lists of literals that a test module names, and lists of its parameters."""
    found: dict[str, object] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


def gpu_cases() -> set[tuple[str, str]]:
    """Shape and file type of every whole model whose logits GPU tests compare."""
    from sp.models.file.file_type import FILE_TYPES

    named = constants(TESTS / "gpu" / "device_models.py")
    cases = {tuple(name.split(":")) for group in ("RANDOM", "FAMILIES", "EXPERTS") for name in named[group]}  # type: ignore[attr-defined]
    text = (TESTS / "gpu" / "test_weight_formats.py").read_text()
    shape, without = EVERY_TYPE
    for piece in (f'"{shape}", file_type', f'if name != "{without}"'):
        assert piece in text, f"test_weight_formats.py no longer says {piece}"
    return {*cases, *((shape, name) for name in FILE_TYPES if name != without)}  # type: ignore[arg-type]


def cpu_cases() -> set[tuple[str, str]]:
    """Shape and file type of every whole model whose logits CPU tests compare with gguf's decoder."""
    from sp.quant import FORMATS

    mixes = constants(TESTS / "models" / "test_weight_formats.py")["MIXES"]
    types = [fmt.name.lower() for fmt in FORMATS.values() if fmt.block_size > 1]
    return {
        *(("tiny-qwen3", name) for name in [*types, *mixes]),  # type: ignore[misc]
        *(("tiny-qwen35", name) for name in mixes),  # type: ignore[attr-defined]
    }


def parity_fixtures() -> dict[str, list[str]]:
    """Names of fixtures made with transformers, by architecture."""
    from sp.gguf import GGUFFile

    found: dict[str, list[str]] = {}
    for path in sorted((TESTS / "fixtures").glob("parity-*.gguf")):
        with GGUFFile.open(path) as file:
            found.setdefault(file.architecture, []).append(path.stem.removeprefix("parity-"))
    return found


def formats_of(cases: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Architecture and format of every matrix in files of these shapes and types."""
    from sp.models.synthetic.shapes import find_shape

    return {
        (find_shape(shape).config.architecture, fmt.name)
        for shape, file_type in cases
        for _, size, fmt in find_shape(shape).plan(file_type)
        if len(size) > 1 and fmt.name != "F32"
    }


def embedded_formats() -> set[tuple[str, str]]:
    """The same of the two models that come with the package."""
    from sp.gguf import GGUFFile
    from sp.session.loaded import embedded

    found = set()
    for role in ("target", "drafter"):
        with GGUFFile.open(embedded(role)) as file:
            found |= {(file.architecture, i.type_name) for i in file.tensors.values() if len(i.shape) > 1}
    return {(architecture, name) for architecture, name in found if name != "F32"}


def families() -> list[str]:
    """Families: what they are, tokenizer of files, evidence on CPU and GPU."""
    from sp.models import ARCHITECTURES
    from sp.models.synthetic.shapes import find_shape, list_shapes

    fixtures, rows = parity_fixtures(), []
    for name in ARCHITECTURES:
        shapes = [find_shape(shape) for shape in list_shapes() if find_shape(shape).config.architecture == name]
        kind = "hybrid" if any(shape.config.delta_layers for shape in shapes) else "attention"
        kind += " with experts" if any(shape.config.experts for shape in shapes) else ", dense"
        known = ", ".join(shape.name for shape in shapes if not shape.name.startswith("tiny-"))
        types = ", ".join(sorted(t for shape, t in gpu_cases() if find_shape(shape).config.architecture == name))
        whole = "every file type but f32" if any(s.name == EVERY_TYPE[0] for s in shapes) else types
        rows.append([f"`{name}`", kind, shapes[0].config.rope.pairing, known, ", ".join(fixtures[name]), whole])
    return table(["family", "kind", "RoPE pairs", "shapes of", "CPU: transformers' logits", "GPU: whole models"], rows)


def wider(fmt: BlockFormat) -> str:
    """Bits on the device, where its kernels read more than a file has."""
    packing = fmt.packing
    assert packing is not None
    return "" if packing.held_bytes == fmt.block_bytes else f", {8 * packing.held_bytes / fmt.block_size:g} bits"


def formats() -> list[str]:
    """Formats: bits, how the GPU holds them, and every family's evidence as `CPU · GPU`."""
    from sp.models import ARCHITECTURES
    from sp.quant import FORMATS
    from sp.quant.repack import device_format

    cpu, gpu = formats_of(cpu_cases()), formats_of(gpu_cases()) | embedded_formats()
    cpu |= {(name, "F32") for name in parity_fixtures()}
    rows = []
    for fmt in sorted(FORMATS.values(), key=lambda one: (-one.bits_per_value, one.name)):
        held = device_format(fmt, 4096)
        native = held is fmt
        marks = []
        for name in ARCHITECTURES:
            on_gpu = "L" if (name, fmt.name) in gpu else "K" if native else "R"
            marks.append(f"{'L' if (name, fmt.name) in cpu else 'V'} · {on_gpu}")
        rows.append(
            [fmt.name, f"{fmt.bits_per_value:g}", "kernels" + wider(fmt) if native else f"as {held.name}", *marks]
        )
    return table(["format", "bits", "GPU", *(f"`{name}`" for name in ARCHITECTURES)], rows)


def write(path: Path, script: str, made: dict[str, list[str]]) -> None:
    """Put tables into a page, between the marks that name them and the script."""
    page = path.read_text()
    for name, lines in made.items():
        first, last = f"<!-- {name}: made by tests/{script} -->", f"<!-- end of {name} -->"
        page = insert_between(page, first, last, "\n".join(["", *lines, ""]))
    path.write_text(page)


def tables() -> dict[str, list[str]]:
    """Every table of the page by its name there."""
    return {"families": families(), "formats": formats()}


if __name__ == "__main__":
    write(PAGE, "models_page.py", tables())
