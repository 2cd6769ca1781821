"""DQN on CartPole-v1 by several processes on torch: data-parallel learners that draw from one prioritized buffer.

Each process steps environments of its own and stores what they do in lanes of its own; a batch is drawn from the lanes
of all, as by one process, and each learns from its share of it. What acts and learns is that of dqn_torch.py, with the
network in DistributedDataParallel, which averages the gradients.

    python examples/torch_processes.py [--processes 2] [--quick] [--seed 0] [--out torch_processes.png]

It starts its processes itself; torchrun would do that over machines.
"""

import tempfile
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from cartpole_spec import QUICK, Config, buffer_spec, schedules
from command_line import parser
from common import Progress, Result, Row, evaluate, finish
from dqn_torch import SELECTION_SEED, Actors, Learner, QNetwork
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import torch_backend as rb


def train(rank: int, config: Config, processes: int, folder: str) -> None:
    """One process: its environments, its shard of the buffer, and a learner that is the same in all of them."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes)
    torch.manual_seed(config.seed)  # the same first weights in all processes
    actors = Actors(replace(config, seed=config.seed + rank, num_envs=config.num_envs // processes))
    learner = Learner(config)
    greedy = learner.network.greedy  # which needs no other process
    learner.online = DistributedDataParallel(learner.network)
    buffer = rb.init(buffer_spec(config), sharding=dist.group.WORLD)
    for _ in range(config.warmup):
        buffer = actors.act(greedy, buffer, epsilon=1.0)

    rows: list[Row] = []
    losses: list[torch.Tensor] = []
    best, best_score = deepcopy(learner.target), -1.0
    keys = rb.split(rb.key(config.seed), config.iterations)  # the same in all processes
    progress = Progress(config.iterations) if rank == 0 else None
    with progress or nullcontext():
        for i, (key, epsilon, beta) in enumerate(zip(keys, *schedules(config), strict=True), start=1):
            buffer = actors.act(greedy, buffer, epsilon)
            buffer, loss = learner.learn(buffer, key, float(beta))
            losses.append(loss)
            if i % config.eval_every:
                continue
            told = torch.tensor([torch.stack(losses).mean(), sum(actors.returns), len(actors.returns)])
            dist.all_reduce(told)
            if progress is not None:
                score = evaluate(greedy, config.eval_episodes, SELECTION_SEED + i).mean()
                if score >= best_score:
                    best, best_score = deepcopy(learner.network), score
                row = Row(i, float(told[1] / told[2]), score, float(told[0]) / processes, epsilon, 0.0)
                rows.append(row._replace(seconds=progress.report(row)))
            actors.returns, losses = [], []
    actors.envs.close()
    done = {"rows": [tuple(map(float, row)) for row in rows], "best": best.state_dict(), "stored": int(rb.size(buffer))}
    torch.save(done | {"last": learner.target.state_dict()}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def main(config: Config, processes: int, out: Path) -> Result:
    # Lanes, and rows of a batch, for all; and n-step returns, for which each environment has a lane.
    lanes = -(-config.num_envs // processes) * processes
    config = replace(config, num_envs=lanes, n_step=max(config.n_step, 2))
    batch = -(-config.batch_size // processes) * processes
    config = replace(config, batch_size=batch, capacity=config.capacity // lanes * lanes)
    with tempfile.TemporaryDirectory() as folder:
        spawn(train, (config, processes, folder), nprocs=processes)
        first, *others = (torch.load(f"{folder}/{rank}.pt", weights_only=True) for rank in range(processes))
    for other in others:
        assert other["stored"] == first["stored"]
        assert all(torch.equal(x, first["last"][name]) for name, x in other["last"].items()), "all learn the same"
    network = QNetwork(config.hidden)
    network.load_state_dict(first["best"])
    return finish(config, [Row(*row) for row in first["rows"]], network.greedy, first["stored"], out)


if __name__ == "__main__":
    given = parser("Data-parallel DQN on CartPole-v1 by several processes on torch.", "torch_processes.png")
    given.add_argument("--processes", type=int, default=2)
    asked = given.parse_args()
    main(replace(QUICK if asked.quick else Config(), seed=asked.seed), asked.processes, asked.out)
