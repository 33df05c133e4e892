"""The codebooks of the formats IQ1 to IQ3 of GGUF files, packed, for crates/kernels/src/gguf/codebook.bin.

Run with gguf 0.19 and numpy. A point has eight numbers of two bits, or four of three in four bits each.
"""

from pathlib import Path

import numpy as np
from gguf import quants

tables = [quants.IQ2_XXS, quants.IQ2_XS, quants.IQ2_S, quants.IQ1_S, quants.IQ3_XXS, quants.IQ3_S]
packed = b"".join(bytes.fromhex(table.grid_hex.decode()) for table in tables)
assert len(packed) == 2 * (256 + 512 + 1024 + 2048 + 256 + 512)
root = Path(__file__).resolve().parents[2]
(root / "crates/kernels/src/gguf/codebook.bin").write_bytes(packed)
