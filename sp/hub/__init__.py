"""Models that `sp` knows by name: where they are fetched from, where they lie, and which file a name stands for."""

from sp.hub.known import KNOWN, KnownModel, Part, best_drafter, fetched, model_path, models_folder

__all__ = ["KNOWN", "KnownModel", "Part", "best_drafter", "fetched", "model_path", "models_folder"]
