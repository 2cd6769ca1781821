"""Prints how many types texts know, and those that only modules register that nobody imports for it."""

import importlib
from pathlib import Path

import functional_rb.checkpoint
from functional_rb.base import containers
from functional_rb.convert import json


def registered() -> set[str]:
    found = (json.OURS, json._BUILT_IN, json._WHOLE, containers.RECORDS, containers.RULES, containers.STATIC)
    return {str(one) for several in found for one in several}


for name in (json.BUFFERS, *json.REGISTERING):
    importlib.import_module(name)
before = registered()
root = Path(functional_rb.__file__).parents[1]
for path in root.glob("functional_rb/**/*.py"):
    source = path.read_text()
    if any(word in source for word in ("register", "add_rule", "@record", "(Description)")):
        importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"))
print(len(before), *registered() - before)
