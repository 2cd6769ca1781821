"""What a backend says where its library is missing, and where it is too old: "jax" or "torch", and a checkpoint."""

import importlib
import sys
import types

import functional_rb as frb

library, path = sys.argv[1:]


class Hidden:
    """Finds everything but the library."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name.partition(".")[0] == library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def attempt() -> None:
    for use in (lambda: importlib.import_module(f"{library}_backend"), lambda: frb.load(path, library)):
        try:
            use()
        except ImportError as error:
            print(error)


sys.meta_path.insert(0, Hidden)  # type: ignore[arg-type]  # a finder needs no more
attempt()
sys.modules[library] = types.ModuleType(library)
sys.modules[library].__version__ = "0.1.2"  # type: ignore[attr-defined]
attempt()
