"""Tensors of a folder of safetensors files, read one at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autotune.contract import jsonfile
from autotune.errors import InputError, RecordError

if TYPE_CHECKING:
    import torch

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
_FORMATS: Final = ("F64", "F32", "F16", "BF16")
_MAX_HEADER_BYTES: Final = 100_000_000
"""The library's own limit."""
_MISFIT: Final = "the folder's config.json and weights do not belong together"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParameterShape:
    """A parameter as a checkpoint holds it."""

    names: tuple[str, ...]
    """As the model has it. More than one where it is tied: a checkpoint has any of them."""
    shape: tuple[int, ...]
    aliases: tuple[str, ...] = ()
    """Names that a checkpoint may have instead, such as those of a larger model around this one."""
    pieces: tuple[str, ...] = ()
    """Tensors that a checkpoint may have instead: of one shape, laid one behind the other in
    memory they are the parameter."""
    piece_shape: tuple[int, ...] = ()

    def stored(self, held: Container[str]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return which tensors of those that are ``held`` make it up, and the shape of each.

        Names that are not held are among them only if the checkpoint lacks the parameter.
        """
        for name in (*self.names, *self.aliases):
            if name in held:
                return (name,), self.shape
        if self.pieces and any(piece in held for piece in self.pieces):
            return self.pieces, self.piece_shape
        return self.names[:1], self.shape


def check_weights(folder: Path, parameters: Sequence[ParameterShape]) -> None:
    """Check that a folder's files hold every parameter, from their headers alone.

    Standard library only: the coordinator calls it, so that weights that do not fit are known
    before anything is launched.

    Raises:
        InputError: See :func:`weight_files`; also a damaged file, a parameter that is missing,
            of another shape, or not of a floating-point format.
    """
    files = weight_files(folder)
    found: dict[str, Any] = {}
    if files is None:
        found = _header(folder / SINGLE)
    else:
        for file in sorted({*files.values()}):
            held = _header(folder / file)
            found |= {name: entry for name, entry in held.items() if files.get(name) == file}
    for parameter in parameters:
        names, shape = parameter.stored(found)
        for name in names:
            _check_entry(folder, name, found.get(name), shape)


def _check_entry(
    folder: Path, name: str, entry: Mapping[str, Any] | None, shape: tuple[int, ...]
) -> None:
    if entry is None:
        raise InputError(f"{folder}: the weights have no tensor {name!r}", hint=_MISFIT)
    if tuple(entry["shape"]) != shape:
        raise InputError(
            f"{folder}: tensor {name!r} has shape {list(entry['shape'])}, the model of its "
            f"config.json needs {list(shape)}",
            hint=_MISFIT,
        )
    if entry["dtype"] not in _FORMATS:
        raise InputError(
            f"{folder}: tensor {name!r} has the format {entry['dtype']}, and only "
            f"{', '.join(_FORMATS)} can be trained",
            hint="give the folder of the model that it was made from",
        )


def _header(path: Path) -> dict[str, Any]:
    """Return tensor name to ``dtype``, ``shape`` and ``data_offsets`` of a safetensors file.

    The format is 8 bytes with the header's length (little-endian), the header as JSON, the data.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= _MAX_HEADER_BYTES:
                raise ValueError("its first bytes are no header's length")
            header = json.loads(file.read(length))
            size = path.stat().st_size - 8 - length
        tensors = {str(name): entry for name, entry in header.items() if name != "__metadata__"}
        for entry in tensors.values():
            if not (isinstance(entry["dtype"], str) and isinstance(entry["shape"], list)):
                raise TypeError("a tensor has no dtype or shape")
            if entry["data_offsets"][1] > size:
                raise ValueError("it ends before its data does")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{path} is damaged or no safetensors file ({error})", hint="copy or save it again"
        ) from error
    return tensors


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

    def read(self, parameter: ParameterShape) -> torch.Tensor:
        """Return a parameter on the CPU, as stored.

        Raises:
            InputError: It is not there, or has another shape.
        """
        import torch

        names, shape = parameter.stored(self.files)
        with contextlib.ExitStack() as stack:
            files: dict[str, Any] = {}
            tensors = []
            for name in names:
                if name not in self.files:
                    raise InputError(
                        f"{self.folder}: the weights have no tensor {name!r}", hint=_MISFIT
                    )
                file = self.files[name]
                if file not in files:
                    files[file] = stack.enter_context(_opened(self.folder / file))
                tensors.append(self._tensor(files[file], name, shape))
            if len(tensors) == 1:
                return tensors[0]
            return torch.cat([tensor.flatten() for tensor in tensors]).reshape(parameter.shape)

    def _tensor(self, file: Any, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name not in file.keys():  # noqa: SIM118 - no dict
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
