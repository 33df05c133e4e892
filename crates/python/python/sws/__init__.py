"""Runs Mixture-of-Experts language models larger than memory.

    import sws

    with sws.Model(sws.DEMO, ram="64MiB") as model:
        for piece in model.generate("The wolf", seed=7):
            print(piece, end="", flush=True)

Names and defaults of options are those of the command `sws`. `__init__.pyi` describes all of them.
"""

from importlib import metadata
from pathlib import Path

from sws._sws import Error, Generated, Metrics, Model, Rank, Text, Texts, __version__, plan


def _demo() -> str:
    """The bundled model, which tells tales, where pip has put it."""
    manifest = Path("share", "sws", "shards", "tales-moe", "manifest.json")
    try:
        installed = metadata.files("sws") or []
    except metadata.PackageNotFoundError:
        installed = []
    found = [Path(file.locate()).resolve() for file in installed if file.parts[-5:] == manifest.parts]
    # `pip install --target` moves it beside the module, and notes another place.
    found.append(Path(__file__).resolve().parents[1] / manifest)
    return str(next((file for file in found if file.exists()), found[0]).parent)


DEMO = _demo()

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
