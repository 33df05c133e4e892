"""Prints what examples/experts.c does, from the file of a checkpoint alone: checksums.py CHECKPOINT LAYER EXPERT.."""

import json
import struct
import sys
from pathlib import Path

checkpoint, layer, *experts = sys.argv[1:]
data = Path(checkpoint, "model.safetensors").read_bytes()
header = int.from_bytes(data[:8], "little")
tensors = json.loads(data[8 : 8 + header])
for expert in experts:
    for projection in ("gate_proj", "up_proj", "down_proj"):
        name = f"model.layers.{layer}.mlp.experts.{expert}.{projection}.weight"
        tensor = tensors[name]
        begin, end = (8 + header + offset for offset in tensor["data_offsets"])
        rows, cols = tensor["shape"]
        checksum = 0xCBF29CE484222325
        for byte in data[begin:end]:
            checksum = (checksum ^ byte) * 0x100000001B3 % (1 << 64)
        assert tensor["dtype"] == "BF16", tensor
        row = (struct.unpack("<f", bytes(2) + data[at : at + 2])[0] for at in range(begin, begin + 2 * cols, 2))
        print(f"{layer}/{expert} {name} bf16 {rows}x{cols} {checksum:016x} {sum(row):.6f}")
