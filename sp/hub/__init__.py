"""Models known by name: where they are downloaded from, where they are stored, and which file a name means."""

from sp.hub.known import KNOWN, KnownModel, WheelMember, best_drafter, fetched, model_path, models_folder

__all__ = ["KNOWN", "KnownModel", "WheelMember", "best_drafter", "fetched", "model_path", "models_folder"]
