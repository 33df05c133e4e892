"""Fits llama.cpp's source to BigMoeOnEdge: `hook.py CLONE`.

BigMoeOnEdge waits for an expert's weights inside the product that uses them. Its docs/seam.md describes the function
that its fork of llama.cpp has for that; this adds one of that name and place to `third_party/llama.cpp`. The code for
draft heads is of another version of llama.cpp, and is left out: no such head is used here.
"""

import sys
from pathlib import Path

DECLARATION = """    typedef void (*ggml_expert_ready_hook_t)(const struct ggml_tensor * weights, int expert, void * user_data);
    GGML_BACKEND_API void ggml_cpu_set_expert_ready_hook(ggml_expert_ready_hook_t hook, void * user_data);
"""
DEFINITION = """static ggml_expert_ready_hook_t expert_ready_hook = NULL;
static void * expert_ready_data = NULL;

void ggml_cpu_set_expert_ready_hook(ggml_expert_ready_hook_t hook, void * user_data) {
    expert_ready_data = user_data;
    expert_ready_hook = hook;
}

"""
CALL = """
        if (expert_ready_hook) {
            expert_ready_hook(src0, cur_a, expert_ready_data);
        }
"""


def find(text, wanted, start=0):
    at = text.find(wanted, start)
    if at < 0:
        sys.exit(f"`{wanted.strip()}` is not in this version of the source; take the versions that build.sh names")
    return at


def edit(path, change):
    text = path.read_text()
    changed = change(text)
    if changed != text:
        path.write_text(changed)


def declare(text):
    if "expert_ready_hook" in text:
        return text
    end = text.rindex("#ifdef")
    return text[:end] + DECLARATION + "\n" + text[end:]


def call(text):
    if "expert_ready_hook" in text:
        return text
    function = find(text, "static void ggml_compute_forward_mul_mat_id(")
    unused = find(text, "if (cne1 == 0) {", function)
    end = find(text, "}", unused) + 1
    return text[:function] + DEFINITION + text[function:end] + "\n" + CALL + text[end:]


def without_draft_heads(text):
    text = text.replace("!common_speculative_process(im.mtp.get(), im.mtp_batch)", "true")
    text = text.replace("mtp_on && !common_speculative_process(im.mtp.get(), pf)", "mtp_on")
    return text.replace("dp.n_past = n_past;", "")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: hook.py CLONE")
    clone = Path(sys.argv[1])
    cpu = clone / "third_party/llama.cpp/ggml"
    edit(cpu / "include/ggml-cpu.h", declare)
    edit(cpu / "src/ggml-cpu/ggml-cpu.c", call)
    edit(clone / "core/src/engine/session.cpp", without_draft_heads)


if __name__ == "__main__":
    main()
