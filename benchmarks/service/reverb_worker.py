"""A server and a client of Reverb, run by an interpreter that has it; it is asked and answers in lines of JSON.

Nothing of this repository is imported here. Items are added one by one, as Reverb has it, and flushed for each batch;
they are drawn by its dataset of TensorFlow in batches.
"""

import functools
import json
import sys
import time

import numpy as np
import reverb
import tensorflow as tf


def main() -> None:
    told = json.loads(sys.argv[1])
    random = np.random.default_rng(0)
    leaves = {name: (tuple(shape), np.dtype(dtype)) for name, (shape, dtype) in told["leaves"].items()}
    items = [
        {name: random.integers(0, 2, shape).astype(dtype) for name, (shape, dtype) in leaves.items()}
        for _ in range(told["add"])
    ]
    table = reverb.Table(
        "table", reverb.selectors.Uniform(), reverb.selectors.Fifo(), told["capacity"], reverb.rate_limiters.MinSize(1)
    )
    server = reverb.Server([table])
    client = reverb.Client(f"localhost:{server.port}")
    writer = client.trajectory_writer(num_keep_alive_refs=1)

    def add() -> None:
        for item in items:
            writer.append(item)
            writer.create_item("table", 1.0, {name: history[-1:] for name, history in writer.history.items()})
        writer.flush()

    types = {name: tf.dtypes.as_dtype(dtype) for name, (_, dtype) in leaves.items()}
    shapes = {name: tf.TensorShape([1, *shape]) for name, (shape, _) in leaves.items()}
    batches = {}

    def stream(n: int) -> None:
        if n not in batches:
            data = reverb.TrajectoryDataset(
                f"localhost:{server.port}", "table", dtypes=types, shapes=shapes, max_in_flight_samples_per_worker=2 * n
            )
            batches[n] = iter(data.batch(n).prefetch(2).as_numpy_iterator())
        next(batches[n])

    def sample(n: int) -> None:
        list(client.sample("table", n, emit_timesteps=False))

    def timed(call, seconds: float) -> list:
        found, until = [], time.perf_counter() + seconds
        while len(found) < 3 or time.perf_counter() < until:
            begin = time.perf_counter()
            call()
            found.append(time.perf_counter() - begin)
        return found

    for line in sys.stdin:
        asked = json.loads(line)
        if asked["what"] == "ready":
            add()
            stream(asked.get("draw", 4))
            batches.clear()
            print(json.dumps({"version": tf.__version__}), flush=True)
            continue
        seconds, draw = asked["seconds"], asked["draw"]
        adds = timed(add, 2 * seconds)
        stream(draw)
        streams = timed(functools.partial(stream, draw), seconds)
        draws = timed(functools.partial(sample, draw), seconds)
        batches.clear()
        answer = {
            "in": told["add"] * len(adds) / sum(adds),
            "out": draw * len(streams) / sum(streams),
            "adds": adds,
            "draws": draws,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
