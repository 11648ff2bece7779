"""Tensors and JSON in one file: the safetensors format, written and read with torch and numpy alone.

A header of JSON (names, types, shapes, offsets, and a metadata map of strings), then the raw little-endian bytes.
The format is public and simple, so that a machine with nothing but torch can resume a run; a test reads these files
with the safetensors library. The metadata carries a checksum of all that the file says. Files are written beside their
place and renamed.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_TYPES = {
    torch.float64: ("F64", np.float64),
    torch.float32: ("F32", np.float32),
    torch.float16: ("F16", np.float16),
    torch.bfloat16: ("BF16", np.int16),  # numpy has no such type: its bits
    torch.uint8: ("U8", np.uint8),
    torch.int64: ("I64", np.int64),
    torch.int32: ("I32", np.int32),
    torch.bool: ("BOOL", np.bool_),
}
_BY_NAME = {name: (dtype, array_type) for dtype, (name, array_type) in _TYPES.items()}
_MOST_HEADER = 100 * 2**20


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write the file in one piece: it is there complete or not at all."""
    arrays = {name: _array(tensor.detach().cpu().contiguous()) for name, tensor in tensors.items()}
    entries, offset = {}, 0
    for name, array in arrays.items():
        end = offset + array.nbytes
        entries[name] = {
            "dtype": _TYPES[tensors[name].dtype][0],
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    checksum = _checksum({"__metadata__": dict(metadata), **entries}, *(array.data for array in arrays.values()))
    info = {**metadata, "checksum": checksum}
    header = json.dumps({"__metadata__": info, **entries}).encode()
    header += b" " * (-len(header) % 8)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for array in arrays.values():
            file.write(array.data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a file; ValueError naming the file where it is damaged."""
    data = path.read_bytes()
    try:
        length = int.from_bytes(data[:8], "little")
        if len(data) < 8 or length > min(_MOST_HEADER, len(data) - 8):
            raise ValueError("the header is cut off")
        entries = json.loads(data[8 : 8 + length])
        body = memoryview(data)[8 + length :]
        checksum = entries.get("__metadata__", {}).pop("checksum", None)
        if checksum is not None and _checksum(entries, body) != checksum:
            raise ValueError("the checksum does not match")
        metadata = entries.pop("__metadata__", {})
        return {name: _tensor(entry, body) for name, entry in entries.items()}, metadata
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"The file {path} is damaged ({error}): restore it or remove it.") from error


def _checksum(header: Mapping[str, Any], *body: memoryview) -> str:
    """Over the header's content, so that a damaged number in the metadata shows too, and the bytes behind it."""
    digest = hashlib.blake2b(json.dumps(header).encode(), digest_size=16)
    for part in body:
        digest.update(part)
    return digest.hexdigest()


def _array(tensor: Tensor) -> np.ndarray:
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _tensor(entry: Mapping[str, Any], body: memoryview) -> Tensor:
    dtype, array_type = _BY_NAME[entry["dtype"]]
    start, end = entry["data_offsets"]
    array = np.frombuffer(body[start:end], dtype=np.dtype(array_type)).reshape(entry["shape"])
    return torch.from_numpy(array.copy()).view(dtype)
