"""Which options stand together in `--help`, by the names of their parameters; the order is that of the command."""

from __future__ import annotations

GROUPS: dict[str, str] = {
    "Prompt": "prompt_file question needle answer_prefix load system text continuation",
    "Models": "file target drafter target_rope drafter_rope math drafter_math draft model synthetic "
    "synthetic_target synthetic_drafter type_ draft_type target_type drafter_type",
    "Scoring": "scorer settings alpha density blocks layers seed",
    "Selection": "keep_ratio selector controls compress threshold break_even positions mapping mark_omitted",
    "Turns": "recall recall_ratio recall_tokens sessions policies new_tokens",
    "Cache and devices": "kv rotate keys session_keys session_memory session_vram device devices cards target_cards "
    "vram path",
    "Decoding": "decode thinking reasoning_effort max_new_tokens max_tokens",
    "Tasks": "names tasks listed lengths n number ways layout depths mode filler value phrasing no_shared_ngrams shots "
    "files format_name metric prompt prompts examples",
    "Measuring": "new repeats full_repeats full_seconds depth chunk kernels methods budgets nodes accept simulate "
    "resume program batches ubatches timeout",
    "Runs": "dry_run only shard",
    "Cluster": "executor actors replicas address",
    "Server": "host port queue max_body grace",
    "Output": "full show_kept verbose out picture record trace plots output wide as_json",
}
FEW = 8
"""Options of a command that need no groups."""

_PANELS = {name: group for group, names in GROUPS.items() for name in names.split()}


def panel_of(name: str) -> str | None:
    """The group of an option; None for one that stands with `--help`.

    Examples
    --------
    >>> panel_of("drafter"), panel_of("plugin")
    ('Models', None)
    """
    return _PANELS.get(name)
