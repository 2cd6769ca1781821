"""One replay buffer on many machines: shards are actors of Ray, and a client draws from all of them as from one.

`start` makes the shards and gives a client, `connect` gives one in another process. What does the work knows nothing of
Ray: a `Shard` owns a buffer, a `Client` chooses shards and weighs what they give, and both meet over a `Transport`.
"""

from functional_rb.scale.ray.client import Client
from functional_rb.scale.ray.limits import RateLimit
from functional_rb.scale.ray.options import Options
from functional_rb.scale.ray.starting import connect, start
from functional_rb.scale.ray.transport import ShardDiedError

__all__ = ["Client", "Options", "RateLimit", "ShardDiedError", "connect", "start"]
__dir__ = __all__.copy
