"""Tensors of a folder of safetensors files, read one at a time."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autotune.contract import jsonfile
from autotune.errors import InputError, RecordError

if TYPE_CHECKING:
    import torch

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"


def weight_files(folder: Path) -> dict[str, str] | None:
    """Return tensor name to file name by the folder's index; ``None`` if one file holds all.

    Standard library only: the coordinator calls it.

    Raises:
        InputError: The folder has no safetensors file, or its index is damaged or names files
            that are not there.
    """
    index = folder / INDEX
    if not index.is_file():
        if (folder / SINGLE).is_file():
            return None
        raise InputError(
            f"{folder} has no weights: neither {SINGLE} nor {INDEX} is there",
            hint="save the model as safetensors, or leave load_weights out to draw the weights",
        )
    try:
        data = jsonfile.read_json(index)
        names = data["weight_map"]
        files = {str(name): str(file) for name, file in names.items()}
    except (RecordError, OSError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{index} is not an index of safetensors files ({error})") from error
    for file in sorted(set(files.values())):
        if Path(file).name != file:
            raise InputError(f"{index} names {file!r}, which lies outside its folder")
        if not (folder / file).is_file():
            raise InputError(f"{index} names {file}, which is not there")
    return files


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A folder of safetensors files. Files are opened per read: nothing stays mapped."""

    folder: Path
    files: Mapping[str, str]
    """Tensor name to file name."""

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Read the names of all tensors, none of their values.

        Raises:
            InputError: See :func:`weight_files`; also a file that is no safetensors file.
        """
        files = weight_files(folder)
        if files is None:
            with _opened(folder / SINGLE) as file:
                files = dict.fromkeys(file.keys(), SINGLE)
        return cls(folder, files)

    def read(self, names: Sequence[str], shape: tuple[int, ...]) -> torch.Tensor:
        """Return the first of ``names`` that is there, on the CPU and as stored.

        Args:
            names: A parameter's names, more than one where it is tied.
            shape: What the model needs.

        Raises:
            InputError: None is there, or the shape is another one.
        """
        name = next((name for name in names if name in self.files), None)
        if name is None:
            raise InputError(
                f"{self.folder}: the weights have no tensor {names[0]!r}",
                hint="the folder's config.json and weights do not belong together",
            )
        with _opened(self.folder / self.files[name]) as file:
            if name not in file.keys():  # noqa: SIM118
                raise InputError(f"{self.folder / self.files[name]} lacks the tensor {name!r}")
            found = tuple(file.get_slice(name).get_shape())
            if found != shape:
                raise InputError(
                    f"{self.folder}: tensor {name!r} has shape {list(found)}, "
                    f"the model of its config.json needs {list(shape)}"
                )
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor


@contextlib.contextmanager
def _opened(path: Path):  # type: ignore[no-untyped-def]
    from safetensors import SafetensorError, safe_open

    try:
        file = safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} cannot be read as a safetensors file ({error})") from error
    with file as opened:
        yield opened
