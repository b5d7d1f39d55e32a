"""GGUF files for other engines, with the very weights that PyTorch computes with."""

from pathlib import Path

import gguf
import numpy as np
import torch


def in_float16(source: Path, target: Path) -> None:
    """Copy a GGUF file, with its matrices in float16 and rounded to bfloat16 before.

    Engines read 4 bit files each with roundings of their own.
    """
    reader, writer = gguf.GGUFReader(source), gguf.GGUFWriter(target, "llama")
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind, value = field.types[0], field.contents()
        if key == "general.file_type":
            value = int(gguf.LlamaFileType.MOSTLY_F16)
        parts = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, value, kind, sub_type=parts)
    for tensor in reader.tensors:
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        array = np.ascontiguousarray(array.reshape(tensor.shape.tolist()[::-1]))
        if array.ndim > 1:
            array = torch.from_numpy(array).bfloat16().half().numpy()
        writer.add_tensor(tensor.name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
