"""Names that CUDA sources share with Python: epilogues, weights of a launch. And nothing in the sources is unused."""

from __future__ import annotations

import re
from collections import Counter

from sp.kernels.flatten import CUDA, locate
from sp.kernels.specs.matmul.epilogue import Epilogue
from sp.kernels.specs.matmul.weights import MOST_WEIGHTS, WEIGHT_ARGS

SOURCES = {path.name: re.sub(r"//.*", "", path.read_text()) for path in sorted(CUDA.rglob("*.cu*"))}
FUNCTION = re.compile(r"(?:SP_DEVICE|__device__)[^;{}()=]*?\b(\w+)\s*\(")
MACRO = re.compile(r"^#define\s+(\w+)", re.MULTILINE)


def test_epilogues_have_the_same_names_and_numbers() -> None:
    defines = re.findall(r"^#define EPILOGUE_(\w+) (\d+)", locate("epilogue.cuh").read_text(), re.MULTILINE)
    assert {name: int(value) for name, value in defines} == {each.name: each.value for each in Epilogue}


def test_no_source_compares_an_epilogue_with_a_bare_number() -> None:
    for name, text in SOURCES.items():
        assert not re.search(r"EPILOGUE\s*[=!]=\s*\d|\bMODE\b", text), name


def test_the_weights_of_a_launch_are_declared_as_they_are_taken() -> None:
    body = re.search(r"#define SP_WEIGHT_PARAMETERS(.*?)\n#define", SOURCES["weights.cuh"], re.DOTALL)
    assert body is not None
    taken = [" ".join(one.replace("\\", " ").split()) for one in body[1].split(",")]
    assert taken == [re.sub(r"(\*)\?? ", r" \1", text) for text in WEIGHT_ARGS]
    assert re.search(r"Weight list\[(\d+)\]", SOURCES["weights.cuh"])[1] == str(MOST_WEIGHTS)  # type: ignore[index]


def test_every_function_and_macro_is_used() -> None:
    everything = "\n".join(SOURCES.values())
    defined = Counter(FUNCTION.findall(everything) + MACRO.findall(everything))
    used = Counter(re.findall(r"\w+", everything))
    assert sorted(name for name, times in defined.items() if used[name] <= times and name != "operator") == []
    included = set(re.findall(r'#include "([^"]+)"', everything))
    assert sorted(name for name in SOURCES if name.endswith(".cuh") and name not in included) == []
