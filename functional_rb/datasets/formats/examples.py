"""Messages `tf.train.Example`, decoded by Google's protobuf without TensorFlow: features by their names."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.extras import imported
from functional_rb.datasets.episode import DatasetError, expecting

if TYPE_CHECKING:
    from google.protobuf.message import Message

WHO = "datasets: RLDS"
# A list of bytes; or float32 or int64 [n].
Feature: TypeAlias = "list[bytes] | NumpyArray"
# How many texts or images a list may hold: each takes some hundred bytes of memory, and maybe two of the file.
MOST = 2**20
# The fields of a Feature, of which it has one: the message that each is of, and what that has a list of.
KINDS = {
    "bytes_list": ("BytesList", "TYPE_BYTES"),
    "float_list": ("FloatList", "TYPE_FLOAT"),
    "int64_list": ("Int64List", "TYPE_INT64"),
}


@functools.cache
def _example() -> type[Message]:
    # The class of an Example, of the definition in TensorFlow's `example.proto` and `feature.proto`.
    # A pool of its own keeps it apart from TensorFlow's, where that is imported too.
    descriptors, pool = (imported(f"google.protobuf.{name}", WHO) for name in ("descriptor_pb2", "descriptor_pool"))
    field = descriptors.FieldDescriptorProto
    one, several, message = field.LABEL_OPTIONAL, field.LABEL_REPEATED, field.TYPE_MESSAGE
    file = descriptors.FileDescriptorProto(name="example.proto", package="tf", syntax="proto3")
    feature = descriptors.DescriptorProto(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, (kind, of)) in enumerate(KINDS.items(), 1):
        file.message_type.add(name=kind).field.add(name="value", number=1, type=getattr(field, of), label=several)
        feature.field.add(name=name, number=number, type=message, type_name=f".tf.{kind}", label=one, oneof_index=0)
    file.message_type.append(feature)
    features = file.message_type.add(name="Features")
    # A map is a list of entries with key and value.
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=one)
    entry.field.add(name="value", number=2, type=message, type_name=".tf.Feature", label=one)
    features.field.add(name="feature", number=1, type=message, type_name=".tf.Features.FeatureEntry", label=several)
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, type=message, type_name=".tf.Features", label=one)
    definitions = pool.DescriptorPool()
    definitions.Add(file)
    example_class: type[Message] = imported("google.protobuf.message_factory", WHO).GetMessageClass(
        definitions.FindMessageTypeByName("tf.Example")
    )
    return example_class


def example(message: memoryview, where: str) -> dict[str, Feature]:
    """The features of an Example, by name. Those that are empty are empty lists.

    Example:
        >>> example(memoryview(bytes.fromhex("0a0c0a0a0a017812051a030a0107")), "a file")
        {'x': array([7])}
    """
    # protobuf without its compiled part raises the second of names.
    errors = imported("google.protobuf.message", WHO).DecodeError, UnicodeDecodeError
    with expecting(f"{where}: expected a message tf.train.Example", *errors):
        features = _example().FromString(bytes(message)).features.feature
    return {name: _values(feature, f"{where}, feature {name!r}") for name, feature in features.items()}


def _values(feature: Message, where: str) -> Feature:
    kind = feature.WhichOneof("kind")
    if kind is None:
        return []
    values = getattr(feature, kind).value
    if kind != "bytes_list":
        return np.fromiter(values, np.float32 if kind == "float_list" else np.int64, len(values))
    # Numbers become an array; bytes are objects, each of which takes far more than it takes in the file.
    if len(values) > MOST:
        raise DatasetError(f"{where}: expected at most {MOST} values in a list, got {len(values)}")
    return list(values)
