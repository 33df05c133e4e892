"""Weights as quantised checkpoints on the hub store them, and the numbers that they stand for.

Scales are chosen simply; what a file's codes and scales mean is what is tested, not how well they were chosen.
"""

import zlib
from collections.abc import Callable

import torch

Tensors = dict[str, torch.Tensor]

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def quantised(scheme: str, weights: Tensors) -> tuple[Tensors, Tensors]:
    """The tensors of the checkpoint, and those of the same model in float32."""
    stored: Tensors = {}
    exact: Tensors = {}
    for name, tensor in weights.items():
        if not takes(scheme, name, tensor):
            stored[name] = tensor
            exact[name] = tensor.float() if tensor.is_floating_point() else tensor
            continue
        parts, exact[name] = SCHEMES[scheme](name, tensor.float())
        stored |= parts
    return {name: tensor.contiguous() for name, tensor in stored.items()}, exact


def takes(scheme: str, name: str, tensor: torch.Tensor) -> bool:
    if scheme == "mxfp4":
        return name.endswith((".gate_up_proj", ".down_proj"))
    if scheme == "mxfp8":
        return name.endswith((".w13_weight", ".w2_weight"))
    if scheme == "mxfp4_pack":
        return ".block_sparse_moe.experts." in name
    if scheme in ("int4", "gptq"):
        return ".mlp.experts." in name
    if scheme == "dsv4":
        pooled = ".compressor." in name or name.endswith(("weights_proj.weight", "gate.weight"))
        return tensor.ndim == 2 and (".attn.w" in name or ".w" in name) and name.endswith(".weight") and not pooled
    return tensor.ndim == 2 and name.endswith("_proj.weight") or name.endswith("_mqa.weight")


def codes_of_e2m1(values: torch.Tensor) -> torch.Tensor:
    codes = (values.abs()[..., None] - E2M1).abs().argmin(-1)
    return (codes + 8 * values.signbit()).to(torch.uint8)


def of_e2m1(codes: torch.Tensor) -> torch.Tensor:
    magnitude = E2M1[(codes & 7).long()]
    return torch.where(codes >= 8, -magnitude, magnitude)


def pairs(codes: torch.Tensor) -> torch.Tensor:
    return codes[..., 0::2] | codes[..., 1::2] << 4


def mxfp4(name: str, tensor: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """gpt-oss: the matrices of the other layout are stored as [experts, columns, rows]."""
    blocks = tensor.transpose(1, 2).unflatten(-1, (-1, 32))
    exponents = blocks.abs().amax(-1).log2().floor() - 2
    codes = codes_of_e2m1(blocks / exponents.exp2()[..., None])
    exact = (of_e2m1(codes) * exponents.exp2()[..., None]).flatten(-2).transpose(1, 2)
    parts = {f"{name}_blocks": pairs(codes), f"{name}_scales": (exponents + 127).to(torch.uint8)}
    return parts, exact.contiguous()


def mxfp4_pack(name: str, tensor: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """compressed-tensors, mxfp4-pack-quantized: two codes in a byte, groups of 32 columns."""
    groups = tensor.unflatten(-1, (-1, 32))
    exponents = groups.abs().amax(-1).log2().floor() - 2
    codes = codes_of_e2m1(groups / exponents.exp2()[..., None])
    exact = (of_e2m1(codes) * exponents.exp2()[..., None]).flatten(-2)
    parts = {"packed": pairs(codes.flatten(-2)), "scale": (exponents + 127).to(torch.uint8)}
    return {f"{name}_{part}": tensor for part, tensor in parts.items()}, exact


def mxfp8(name: str, tensor: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Inkling 2: e4m3 with the exponent of a power of two for 32 columns."""
    groups = tensor.unflatten(-1, (-1, 32))
    scales = powers(groups.abs().amax(-1) / 448)
    codes = (groups / scales[..., None]).to(torch.float8_e4m3fn)
    exact = (codes.float() * scales[..., None]).flatten(-2)
    return {name: codes.flatten(-2), f"{name}_scale": (scales.log2() + 127).to(torch.uint8)}, exact


def fp8(dtype: torch.dtype) -> Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]:
    """Blocks of 128 rows and columns, smaller at the edges."""

    def store(name: str, tensor: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rows, cols = tensor.shape
        scales = torch.empty((rows + 127) // 128, (cols + 127) // 128)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                block = tensor[128 * i : 128 * (i + 1), 128 * j : 128 * (j + 1)]
                scales[i, j] = block.abs().max() / 440
        scales = scales.to(dtype)
        wide = scales.float().repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :cols]
        codes = (tensor / wide).to(torch.float8_e4m3fn)
        return {name: codes, f"{name}_scale_inv": scales}, codes.float() * wide

    return store


def int4(name: str, tensor: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """compressed-tensors, pack-quantized: eight codes from 0 to 15 in an integer, groups of 32."""
    rows, cols = tensor.shape
    groups = tensor.unflatten(-1, (-1, 32))
    scales = (groups.abs().amax(-1) / 7.5).to(torch.bfloat16)
    codes = (groups / scales.float()[..., None]).round().clamp(-8, 7)
    exact = (codes * scales.float()[..., None]).flatten(-2)
    nibbles = (codes.flatten(-2) + 8).long().unflatten(-1, (-1, 8))
    packed = (nibbles << torch.arange(0, 32, 4)).sum(-1)
    packed = torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)
    parts = {"packed": packed, "scale": scales, "shape": torch.tensor([rows, cols])}
    return {f"{name}_{part}": tensor for part, tensor in parts.items()}, exact


def nvfp4(name: str, tensor: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """modelopt: e4m3 scales of 16 columns, and a scale of all of them. The others are for activations."""
    groups = tensor.unflatten(-1, (-1, 16))
    second = tensor.abs().max() / (6 * 440)
    scales = (groups.abs().amax(-1) / (6 * second)).to(torch.float8_e4m3fn)
    codes = codes_of_e2m1(groups / (scales.float() * second).clamp(min=1e-9)[..., None])
    exact = of_e2m1(codes) * scales.float()[..., None] * second
    stem = name.removesuffix(".weight")
    parts = {name: pairs(codes.flatten(-2)), f"{name}_scale": scales, f"{name}_scale_2": second}
    return parts | {f"{stem}.input_scale": torch.tensor(0.01)}, exact.flatten(-2)


def powers(scales: torch.Tensor) -> torch.Tensor:
    """The next powers of two."""
    return scales.log2().ceil().exp2()


def dsv4(name: str, tensor: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """DeepSeek V4: experts in fp4, in groups of 32; other matrices in fp8, in blocks of 128 rows and columns."""
    stem = name.removesuffix(".weight")
    if ".experts." in name:
        groups = tensor.unflatten(-1, (-1, 32))
        scales = powers(groups.abs().amax(-1) / 6)
        codes = codes_of_e2m1(groups / scales[..., None])
        exact = (of_e2m1(codes) * scales[..., None]).flatten(-2)
        stored = pairs(codes.flatten(-2)).view(torch.int8)
        return {name: stored, f"{stem}.scale": scales.to(torch.float8_e8m0fnu)}, exact
    rows, cols = tensor.shape
    padded = torch.nn.functional.pad(tensor, (0, -cols % 128, 0, -rows % 128))
    blocks = padded.unflatten(1, (-1, 128)).unflatten(0, (-1, 128))
    scales = powers(blocks.abs().amax((1, 3)) / 448)
    wide = scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :cols]
    codes = (tensor / wide).to(torch.float8_e4m3fn)
    return {name: codes, f"{stem}.scale": scales.to(torch.float8_e8m0fnu)}, codes.float() * wide


EIGHT = torch.arange(0, 32, 4)
AWQ = [0, 2, 4, 6, 1, 3, 5, 7]


def integers(nibbles: torch.Tensor) -> torch.Tensor:
    """Eight codes of the last dimension to an integer, the first in its lowest bits."""
    packed = (nibbles.long().unflatten(-1, (-1, 8)) << EIGHT).sum(-1)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)


def nibbles(packed: torch.Tensor) -> torch.Tensor:
    return (packed.long()[..., None] >> EIGHT & 15).flatten(-2)


def coded(tensor: torch.Tensor, order: torch.Tensor, symmetric: bool, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Codes [columns, rows], and zero points and scales [groups, rows], where `order` is the group of each column."""
    columns = tensor.T
    shape = int(order.max()) + 1, columns.shape[1]
    zeros, scales = torch.empty(shape), torch.empty(shape)
    for group in range(shape[0]):
        held = columns[order == group]
        low, high = held.amin(0).clamp(max=0), held.amax(0).clamp(min=0)
        if symmetric:
            scales[group], zeros[group] = torch.maximum(-low / 8, high / 7), 8
        else:
            scales[group] = (high - low) / 15
            zeros[group] = (-low / scales[group]).round()
    scales = scales.to(dtype)
    codes = (columns / scales.float()[order] + zeros[order]).round().clamp(0, 15)
    return codes, zeros, scales


def awq(name: str, tensor: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """AutoAWQ, gemm: an integer holds eight outputs, in an order of its own."""
    order = torch.arange(tensor.shape[1]) // 32
    codes, zeros, scales = coded(tensor, order, False, torch.float16)

    def pack(values: torch.Tensor) -> torch.Tensor:
        return integers(values.unflatten(-1, (-1, 8))[..., AWQ].flatten(-2))

    def unpack(packed: torch.Tensor) -> torch.Tensor:
        return nibbles(packed).unflatten(-1, (-1, 8))[..., [0, 4, 1, 5, 2, 6, 3, 7]].flatten(-2)

    stem = name.removesuffix(".weight")
    parts = {"qweight": pack(codes), "qzeros": pack(zeros), "scales": scales}
    differences = unpack(parts["qweight"]) - unpack(parts["qzeros"])[order]
    exact = differences * scales.float()[order]
    return {f"{stem}.{part}": tensor for part, tensor in parts.items()}, exact.T.contiguous()


def gptq(
    group: int, symmetric: bool, act_order: bool, version: int, dtype: torch.dtype
) -> Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]:
    """An integer holds eight inputs. The first version stores zero points less one, with borrows, as GPTQModel does."""

    def store(name: str, tensor: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        columns = tensor.shape[1]
        order = torch.arange(columns) // group
        if act_order:
            seed = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            order = order[torch.randperm(columns, generator=seed)]
        codes, zeros, scales = coded(tensor, order, symmetric, dtype)
        offset = 0x11111111 if version == 1 else 0
        qzeros = integers(zeros).long() - offset
        qzeros = torch.where(qzeros < -(1 << 31), qzeros + (1 << 32), qzeros).to(torch.int32)
        qweight = integers(codes.T).T
        differences = nibbles(qweight.T).T - nibbles(qzeros.long() + offset)[order]
        exact = differences * scales.float()[order]
        stem = name.removesuffix(".weight")
        parts = {"qweight": qweight, "qzeros": qzeros, "scales": scales, "g_idx": order.to(torch.int32)}
        return {f"{stem}.{part}": tensor for part, tensor in parts.items()}, exact.T.contiguous()

    return store


SCHEMES = {
    "awq": awq,
    "gptq": gptq(64, True, False, 1, torch.bfloat16),
    "gptq_asymmetric": gptq(128, False, False, 1, torch.float16),
    "gptq_act_order": gptq(32, False, True, 1, torch.float16),
    "gptq_v2": gptq(32, False, True, 2, torch.float16),
    "dsv4": dsv4,
    "mxfp4": mxfp4,
    "mxfp4_pack": mxfp4_pack,
    "mxfp8": mxfp8,
    "fp8": fp8(torch.float32),
    "fp8_bf16": fp8(torch.bfloat16),
    "int4": int4,
    "nvfp4": nvfp4,
}
