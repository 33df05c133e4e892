#!/usr/bin/env python3
"""Writes the configurations of all checkpoints as transformers spells them when it saves them.

    python spellings.py     # those of the transformers that is installed, into spellings.json

Each version has its own place in the file: 4.57.1, which leaves out what is a default of its classes, and the one that
README.md pins. Neither needs torch.
"""

import json
from pathlib import Path

import transformers

HERE = Path(__file__).resolve().parent
FILE = HERE / "spellings.json"


def main() -> None:
    transformers.logging.set_verbosity_error()
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    version = transformers.__version__
    known[version] = {folder.name: saved for folder in sorted(HERE.iterdir()) if (saved := spelled(folder, version))}
    print(version, len(known[version]))
    of_versions = [f'"{version}": {{\n{lines(known[version])}\n}}' for version in sorted(known)]
    FILE.write_text("{\n" + ",\n".join(of_versions) + "\n}\n")


def lines(configs: dict[str, object]) -> str:
    return ",\n".join(f'"{name}": {json.dumps(config, sort_keys=True, separators=(",", ":"))}' for name, config in configs.items())


def spelled(folder: Path, version: str) -> object:
    """The configuration of a checkpoint as it is saved; None where this version does not know the model."""
    if not (folder / "golden.safetensors").exists():
        return None
    # Transformers 4 does not read what transformers 5 writes.
    if version.startswith("4.") and folder.name.endswith("_v5cfg"):
        return None
    # Not a model of transformers, which has another one by this name.
    if folder.name.startswith("kimi_k3"):
        return None
    try:
        known = transformers.AutoConfig.from_pretrained(folder)
    except (ValueError, TypeError, KeyError) as error:
        print(f"{folder.name}: {str(error)[:80]}")
        return None
    return json.loads(known.to_json_string(use_diff=True))


if __name__ == "__main__":
    main()
