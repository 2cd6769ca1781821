"""Prints how many classes texts may name, and those that a module makes known though no text can name them."""

import importlib
from pathlib import Path

import functional_rb.checkpoint
from functional_rb.base import containers
from functional_rb.convert.json_names import CLASSES, CONTAINERS, class_named, container_named

# What reads checkpoints brings some of its own.
known = {*containers.RECORDS, *map(class_named, CLASSES), *map(container_named, CONTAINERS)}
root = Path(functional_rb.__file__).parents[1]
for path in root.glob("functional_rb/**/*.py"):
    source = path.read_text()
    if any(word in source for word in ("register", "add_rule", "@record", "(Description)")):
        importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"))
made_known = {*containers.RECORDS, *containers.RULES, *containers.STATIC}
print(len(known), *(f"{kind.__module__}:{kind.__qualname__}" for kind in made_known - known))
