#!/usr/bin/env python3
"""Writes tests/golden/dtype.bin: random blocks of each quantised dtype and their values.

The values come from the `gguf` package (gguf.quants.dequantize), which shares no code with
Lowtide. Run by hand; the file is committed. Needs: pip install gguf numpy.

    python3 tests/golden/make_dtype_golden.py tests/golden/dtype.bin

Layout, little endian: per dtype  u32 gguf id, u32 blocks, u32 block bytes, u32 elements of a
block, then the blocks, then their values as f32; the end of the file ends the list.
"""
import struct
import sys

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

# Offsets of the f16 fields: random bits there would give infinities and NaN.
F16_FIELDS = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82],
    T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0], T.MXFP4: [],
}
SPECIAL = np.array([0.0, -0.0, -0.5, 6e-8, 60000.0], dtype="<f2")


def blocks_of(rng, qtype, count):
    block_bytes = GGML_QUANT_SIZES[qtype][1]
    blocks = rng.integers(0, 256, (count, block_bytes), dtype=np.uint8)
    for offset in F16_FIELDS[qtype]:
        scale = (rng.standard_normal(count) * 0.02).astype("<f2")
        scale[-2:] = rng.choice(SPECIAL, 2)
        blocks[:, offset:offset + 2] = scale.view(np.uint8).reshape(count, 2)
    if qtype == T.MXFP4:  # 255 is NaN to us, by the OCP format, and 2^127 to the package
        blocks[:, 0] = rng.integers(110, 140, count)
        blocks[:4, 0] = [0, 1, 2, 254]
    return blocks


def main(path):
    rng = np.random.default_rng(20250131)
    with open(path, "wb") as out:
        for qtype in F16_FIELDS:
            elems, block_bytes = GGML_QUANT_SIZES[qtype]
            count = 8 if elems == 32 else 3
            blocks = blocks_of(rng, qtype, count)
            values = dequantize(blocks, qtype).astype("<f4").reshape(-1)
            assert values.size == count * elems
            out.write(struct.pack("<4I", int(qtype), count, block_bytes, elems))
            out.write(blocks.tobytes())
            out.write(values.tobytes())


if __name__ == "__main__":
    main(sys.argv[1])
