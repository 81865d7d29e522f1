"""The model hub, asked once and without long waits."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from autotune.errors import EnvironmentFault, InputError

PROBE_TIMEOUT_S: Final = 10.0
"""How long one question to the hub may take before it counts as not reached."""


def download(name: str, patterns: list[str]) -> Path:
    """Return the local folder with the files of repository ``name`` that match ``patterns``.

    Files already in the hub's own cache are used without asking when the hub is not reached.

    Raises:
        InputError: The hub has no such repository, or it has no ``config.json``.
        EnvironmentFault: The hub was not reached, or it refuses access.
    """
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise EnvironmentFault(
            f"model {name} would come from the hub, and huggingface_hub cannot be imported",
            hint="install it, or give a local folder",
        ) from error
    try:
        # The library retries a missing file for a minute and more; one question that fails
        # fast tells whether it is worth asking.
        huggingface_hub.HfApi().model_info(name, timeout=PROBE_TIMEOUT_S)
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns))
    except errors.GatedRepoError as error:
        raise EnvironmentFault(
            f"the hub does not let this machine read model {name}",
            hint="accept its licence there and log in with `hf auth login`",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"model {name}: there is no such folder here and no such repository on the hub",
            hint="check the spelling; a private repository needs `hf auth login`",
        ) from error
    except Exception as error:
        return _cached(name, patterns, error)
    return folder


def _cached(name: str, patterns: list[str], reason: Exception) -> Path:
    import huggingface_hub

    try:
        folder = huggingface_hub.snapshot_download(
            name, allow_patterns=patterns, local_files_only=True
        )
        if (Path(folder) / "config.json").is_file():
            return Path(folder)
    except Exception:  # noqa: S110
        pass  # nothing in the cache: the first reason is the one that counts
    kind = type(reason).__name__
    raise EnvironmentFault(
        f"model {name} is no folder here, and the hub was not reached ({kind})",
        hint="give a local folder with the model's config.json, or check the network and HF_* "
        "settings",
    ) from reason
