"""Writes a GGUF of the shape and the types of Qwen3-30B-A3B in Q4_K_M, with random weights: 18.6 GB in a minute.

    python benchmarks/qwen30.py VOCAB.gguf OUT.gguf [--layers 48] [--fixed .58] [--seed 1]
    python benchmarks/qwen30.py VOCAB.gguf DIR --tokenizer     # the same tokenizer in files of Hugging Face

VOCAB.gguf is llama.cpp's models/ggml-vocab-qwen2.gguf, which `benchmarks/peers/build.sh DIR source` unpacks. Needs numpy
and gguf.

Types are those of published files: attn_k Q8_0, attn_output Q5_K, attn_v and ffn_down Q6_K in half of the layers, output
Q6_K, routers and norms F32, all others Q4_K. Codes are random, and scales small, so that a layer changes the hidden state
by about UPDATE of its size. A part of each embedding is the same for all tokens, and routers look at it, so a share of
the variance of the routers' logits is fixed for each expert. A share of .58 has the hit rates under LRU of a real trace
of Qwen3-30B-A3B: .64 with 19 of 128 slots, .79 with 31, .91 with 64. The fixed part is the same for all texts and has no
drift, which favours policies that count uses over LRU by a little.
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np

HIDDEN, HEADS, KV_HEADS, HEAD, VOCAB, WIDTH, EXPERTS, USED = 2048, 32, 4, 128, 151936, 768, 128, 8
# Share of an embedding's energy that all tokens have in common.
COMMON = 0.30
UPDATE = 0.15
# Standard deviation of a router's logits.
LOGITS = 1.3
# First of the special tokens.
SPECIAL = 151643
END = 151645
F32, Q4, Q5, Q6, Q8 = (gguf.GGMLQuantizationType[name] for name in ["F32", "Q4_K", "Q5_K", "Q6_K", "Q8_0"])
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def headers(scale, ratio, scales, minima):
    """Heads of blocks of Q4_K or Q5_K: two factors, of which the second is `ratio` of the first, and eight scales and
    eight minima of six bits each."""
    heads = np.empty((len(scales), 16), np.uint8)
    for at, factor in (0, scale), (2, scale * ratio):
        heads[:, at : at + 2] = np.frombuffer(np.float16(factor).tobytes(), np.uint8)
    heads[:, 4:8] = scales[:, :4] | scales[:, 4:] >> 4 << 6
    heads[:, 8:12] = minima[:, :4] | minima[:, 4:] >> 4 << 6
    heads[:, 12:16] = scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4
    return heads


def noise(rng, blocks, size):
    words = -(-blocks * size // 8)
    return rng.integers(0, 2**64, words, dtype=np.uint64).view(np.uint8)[: blocks * size].reshape(blocks, size)


def tiled(pool, blocks):
    return np.resize(pool, (blocks, pool.shape[1]))


def centred(rng, blocks, scale, ratio):
    """Blocks of Q4_K or Q5_K with a mean of zero, without codes: minima are half of the largest code."""
    scales = rng.integers(32, 64, (4096, 8)).astype(np.uint8)
    return tiled(headers(scale, ratio, scales, scales), blocks)


# Each makes blocks of weights with this standard deviation: that of the codes times the root mean square of the scales
# divides it.
def q4(rng, weights, deviation):
    blocks = noise(rng, weights // 256, 144)
    blocks[:, :16] = centred(rng, len(blocks), deviation / (4.61 * 47.5), 7.5)
    return blocks


def q5(rng, weights, deviation):
    blocks = noise(rng, weights // 256, 176)
    blocks[:, :16] = centred(rng, len(blocks), deviation / (9.23 * 47.5), 15.5)
    return blocks


def q6(rng, weights, deviation):
    blocks = noise(rng, weights // 256, 210)
    scales = rng.integers(64, 128, (4096, 16)) * rng.choice([-1, 1], (4096, 16))
    blocks[:, 192:208] = tiled(scales.astype(np.int8).view(np.uint8), len(blocks))
    blocks[:, 208:210] = np.frombuffer(np.float16(deviation / (18.47 * 97)).tobytes(), np.uint8)
    return blocks


def q8(rng, weights, deviation):
    blocks = noise(rng, weights // 32, 34)
    blocks[:, :2] = np.frombuffer(np.float16(deviation / 73.9).tobytes(), np.uint8)
    return blocks


# The maker of a type, bytes of a block, and weights of a block.
TYPES = {Q4: (q4, 144, 256), Q5: (q5, 176, 256), Q6: (q6, 210, 256), Q8: (q8, 34, 32)}


def embeddings(rng, signs):
    """Rows of Q4_K of mean square 1, of which COMMON is in the means of the blocks of 32, the same in every row."""
    scale = (1 - COMMON) ** 0.5 / (4.61 * 40)
    minima = np.round(37.5 - signs * COMMON**0.5 / (8 * scale)).astype(np.uint8).reshape(8, 8)
    blocks = noise(rng, VOCAB * HIDDEN // 256, 144)
    blocks[:, :16] = tiled(headers(scale, 8, np.full((8, 8), 40, np.uint8), minima), len(blocks))
    return blocks


def output(rng):
    """Rows of Q6_K that do not see what all embeddings have in common. Special tokens have a logit of zero."""
    blocks = q6(rng, VOCAB * HIDDEN, 0.02)
    for start, end in ((0, 128), (128, 192)):
        halves = blocks[:, start:end].reshape(len(blocks), -1, 2, 8)
        halves[:, :, 1] = ~halves[:, :, 0]
    blocks.reshape(VOCAB, -1, 210)[SPECIAL:, :, 208:] = 0
    return blocks


def router(rng, signs, layer, fixed):
    """Rows whose logits have this share of their variance fixed for each expert, about."""
    common = COMMON / (1 + layer * UPDATE**2)
    bias = (max(0.0, (fixed - common) / (1 - fixed)) / common) ** 0.5
    rows = rng.standard_normal((EXPERTS, HIDDEN))
    direction = np.repeat(signs, 32) / HIDDEN**0.5
    rows += rng.standard_normal((EXPERTS, 1)) * bias * direction
    # What is in common fades faster than assumed above, as measured.
    rows += (0.952 + 0.0094 * layer - 1) * (rows @ direction)[:, None] * direction
    return (rows * LOGITS / HIDDEN**0.5).astype(np.float32)


def has_more_bits(layer, layers):
    """True for the layers that Q4_K_M gives Q6_K."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def tensors(layers, fixed, seed):
    """The name, the type, the shape and the maker of each tensor."""
    signs = np.where(np.arange(HIDDEN // 32) % 2, 1.0, -1.0)
    np.random.default_rng(0).shuffle(signs)
    streams = (np.random.Generator(np.random.SFC64([seed, number])) for number in range(1, 2**31))

    def weights(name, kind, shape, deviation):
        return name, kind, shape, lambda rng=next(streams): TYPES[kind][0](rng, int(np.prod(shape)), deviation)

    def ones(name, size):
        return name, F32, (size,), lambda: np.ones(size, np.float32)

    yield "token_embd.weight", Q4, (VOCAB, HIDDEN), lambda rng=next(streams): embeddings(rng, signs)
    for layer in range(layers):
        block, wide = f"blk.{layer}.", Q6 if has_more_bits(layer, layers) else Q4
        yield ones(block + "attn_norm.weight", HIDDEN)
        yield weights(block + "attn_q.weight", Q4, (HEADS * HEAD, HIDDEN), 0.02)
        yield weights(block + "attn_k.weight", Q8, (KV_HEADS * HEAD, HIDDEN), 0.02)
        yield weights(block + "attn_v.weight", wide, (KV_HEADS * HEAD, HIDDEN), 0.02)
        yield weights(block + "attn_output.weight", Q5, (HIDDEN, HEADS * HEAD), 0.0015)
        yield ones(block + "attn_q_norm.weight", HEAD)
        yield ones(block + "attn_k_norm.weight", HEAD)
        yield ones(block + "ffn_norm.weight", HIDDEN)
        routes = lambda rng=next(streams), layer=layer: router(rng, signs, layer, fixed)
        yield block + "ffn_gate_inp.weight", F32, (EXPERTS, HIDDEN), routes
        yield weights(block + "ffn_gate_exps.weight", Q4, (EXPERTS, WIDTH, HIDDEN), 0.02)
        yield weights(block + "ffn_up_exps.weight", Q4, (EXPERTS, WIDTH, HIDDEN), 0.02)
        yield weights(block + "ffn_down_exps.weight", wide, (EXPERTS, HIDDEN, WIDTH), UPDATE / 4.2)
    yield ones("output_norm.weight", HIDDEN)
    yield "output.weight", Q6, (VOCAB, HIDDEN), lambda rng=next(streams): output(rng)


def vocabulary(path):
    """Tokens, their kinds and the merges of a GGUF."""
    fields = gguf.GGUFReader(path).fields
    return [fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type", "merges")]


def tokenizer_files(path, folder):
    """Files of Hugging Face for the tokenizer of a GGUF."""
    tokens, kinds, merges = vocabulary(path)
    added = [at for at, kind in enumerate(kinds) if kind in (3, 4) and at >= SPECIAL]
    words = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    split = {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    bpe = {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False}
    bpe |= {"continuing_subword_prefix": "", "end_of_word_suffix": "", "merges": merges}
    bpe["vocab"] = {token: at for at, token in enumerate(tokens[:SPECIAL])}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "normalizer": {"type": "NFC"}, "model": bpe}
    tokenizer["added_tokens"] = [{"id": at, "content": tokens[at], **flags} for at in added]
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, level]}
    tokenizer |= {"post_processor": level, "decoder": level}
    config = {"tokenizer_class": "Qwen2Tokenizer", "chat_template": CHAT, "model_max_length": 262144}
    config |= {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None}
    config |= {"add_bos_token": False, "add_prefix_space": False, "clean_up_tokenization_spaces": False}
    generation = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8}
    generation |= {"bos_token_id": SPECIAL, "eos_token_id": [END, SPECIAL], "pad_token_id": SPECIAL}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in ("tokenizer", tokenizer), ("tokenizer_config", config), ("generation_config", generation):
        (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False))


def write(vocab, out, layers, fixed, seed):
    tokens, kinds, merges = vocabulary(vocab)
    missing = VOCAB - len(tokens)
    writer = gguf.GGUFWriter(out, "qwen3moe")
    writer.add_name("Random-Qwen3-30B-A3B")
    writer.add_block_count(layers)
    writer.add_context_length(262144)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(6144)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_freq_base(1e7)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)
    writer.add_expert_feed_forward_length(WIDTH)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_quantization_version(2)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*tokens, *(f"[PAD{at}]" for at in range(len(tokens), VOCAB))])
    writer.add_token_types([*kinds, *[int(gguf.TokenType.UNUSED)] * missing])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(SPECIAL)
    writer.add_eos_token_id(END)
    writer.add_pad_token_id(SPECIAL)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT)
    plan = list(tensors(layers, fixed, seed))
    for name, kind, shape, _ in plan:
        if kind == F32:
            writer.add_tensor_info(name, shape, np.dtype(np.float32), int(np.prod(shape)) * 4)
        else:
            _, size, weights = TYPES[kind]
            shape = (*shape[:-1], shape[-1] // weights * size)
            writer.add_tensor_info(name, shape, np.dtype(np.uint8), int(np.prod(shape)), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, _, _, make in plan:
        writer.write_tensor_data(make())
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vocab", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--fixed", type=float, default=0.58, help="share of routers' variance that is fixed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokenizer", action="store_true", help="write the tokenizer's files to a directory instead")
    args = parser.parse_args()
    if args.tokenizer:
        return tokenizer_files(args.vocab, args.out)
    # A file that is not whole must not look as if it were.
    part = args.out.with_name(args.out.name + ".part")
    write(args.vocab, part, args.layers, args.fixed, args.seed)
    part.rename(args.out)


main()
