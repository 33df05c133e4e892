"""A tiny model for clients. It has no training, so one of its tokens is a whole answer, and a bias chooses it."""

import json
import shutil
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent.parent / "goldens" / "qwen3_moe"
THOUGHT, TEXT, ARGUMENTS = "so it is", "I look.", {"city": "bern", "days": 2}
CALL = json.dumps({"name": "weather", "arguments": ARGUMENTS})
ANSWER = f"<think>\n{THOUGHT}\n</think>\n\n{TEXT}\n<tool_call>\n{CALL}\n</tool_call>STOP"
TOKEN = 40
TEMPLATE = (
    "{# <think></think><tool_call> #}{% for t in tools or [] %}{{ t.function.name }}\n{% endfor %}"
    "{% for m in messages %}{{ m.role }} {{ m.content }}\n{% endfor %}assistant "
)


def make(to: Path) -> None:
    """Writes the model, with a tokenizer of letters."""
    shutil.copytree(GOLDEN, to)
    vocab_size = json.loads((to / "config.json").read_text())["vocab_size"]
    tokens = ["<end>", *"abcdefghijklmnopqrstuvwxyz", "Ġ", "Ċ"]
    tokens += [f"Ġword{n}" for n in range(vocab_size - len(tokens))]
    # What JSON needs, too.
    others = [chr(code) for code in range(33, 127) if not chr(code).islower()]
    tokens[TOKEN + 1 : TOKEN + 1 + len(others)] = others
    tokens[TOKEN] = ANSWER.replace(" ", "Ġ").replace("\n", "Ċ")
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    end = {"id": 0, "content": "<end>", "single_word": False, "lstrip": False, "rstrip": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{**end, "normalized": False, "special": True}],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": {t: n for n, t in enumerate(tokens)}, "merges": []},
    }
    (to / "tokenizer.json").write_text(json.dumps(tokenizer))
    (to / "chat_template.jinja").write_text(TEMPLATE)
