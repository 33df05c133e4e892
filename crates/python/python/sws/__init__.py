"""Runs Mixture-of-Experts language models larger than memory.

    import sws

    with sws.Model(sws.DEMO, ram="64MiB") as model:
        for piece in model.generate("The wolf", seed=7):
            print(piece, end="", flush=True)

Names and defaults of options are those of the command `sws`. `__init__.pyi` describes all of them.
"""

import sysconfig
from pathlib import Path

from sws._sws import Error, Generated, Metrics, Model, Rank, Text, Texts, __version__, plan

# The bundled model, which tells tales.
DEMO = str(Path(sysconfig.get_path("data"), "share", "sws", "shards", "tales-moe"))

__all__ = [
    "DEMO",
    "Error",
    "Generated",
    "Metrics",
    "Model",
    "Rank",
    "Text",
    "Texts",
    "__version__",
    "plan",
]
