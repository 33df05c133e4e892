"""The numbers that gguf-py decodes blocks of GGUF files to, as hashes, for crates/kernels/tests/gguf.rs.

Run with gguf 0.19 and numpy; it prints the rows of the table there.
"""

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize

BLOCKS = 256
NAMES = "Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S TQ1_0 TQ2_0 MXFP4 NVFP4"


def random(count):
    """The bytes of the test's generator."""
    state, out = count, bytearray()
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(state >> 56)
    return np.frombuffer(bytes(out), np.uint8)


def fnv(words):
    value = 0xCBF29CE484222325
    for word in words.tolist():
        value = ((value ^ word) * 0x100000001B3) % 2**64
    return value


for name in NAMES.split():
    cols, size = GGML_QUANT_SIZES[Type[name]]
    with np.errstate(all="ignore"):
        numbers = dequantize(random(BLOCKS * size).reshape(1, -1), Type[name]).reshape(-1)
    bits = np.where(np.isnan(numbers), np.uint32(0x7FC00000), numbers.view(np.uint32))
    label = name.lower() + ("_gguf" if name in ("MXFP4", "NVFP4") else "")
    print(f'        ("{label}", "{fnv(bits):016x}"),')
