"""The public functions of search trees, which backends bind. Each takes a `TreesLib` first."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from functional_rb.base import dtypes, nest
from functional_rb.base.arrays import ArrayLike, BackendArray, DeviceLike, Nest, PRNGKey
from functional_rb.lib import A
from functional_rb.ops.protocol import Array, TreeOps
from functional_rb.specs import ArraySpec, Unbounded
from functional_rb.trees import reuse
from functional_rb.trees import search as core
from functional_rb.trees.lib import AskedStep, Search, TreesLib
from functional_rb.trees.policies import MuZero, Policy
from functional_rb.trees.scores import PUCT, Score
from functional_rb.trees.search import Evaluated, Step
from functional_rb.trees.spec import INT32_MAX, Content, TreeSpec
from functional_rb.trees.state import Expansion, Tree

NAMES: Final = (
    "backup",
    "expand",
    "reset",
    "search",
    "select",
    "subtree",
    "view",
)
"""What `rb.trees` has on every backend."""

_CHANCE: Final = "TreeSpec(..., chance=True)"
FLOAT, MASK, INDEX = Unbounded((), "float32"), Unbounded((), "bool"), Unbounded((), "int32")


class Proposal(NamedTuple):
    """What a search proposes.

    Attributes:
        slot: int32 [B], the slot of the root to take; -1 where nothing could be searched, or chance decides.
        action: the action of that slot: a nest like `TreeSpec.action`, leaves [B, *shape], or the slot itself. Where
            the slot is -1, the action of slot 0 stands there, or -1.
        weights: float32 [B, A], the improved policy, a target to learn: it sums to 1 over the valid slots.
    """

    slot: BackendArray
    action: Nest
    weights: BackendArray


class Leaf(NamedTuple):
    """Where a simulation ends: an edge, what a model is asked about it, and what lies behind it.

    Attributes:
        node: int32 [B], the node from which the last edge was taken; -1 if a tree cannot be searched, as it is empty,
            or its root is terminal.
        slot: int32 [B], the slot that was taken; -1 there.
        child: int32 [B], the node behind it; -1 if none is stored.
        value: float32 [B], what is to be backed up: the predicted value of the node behind the edge, which `expand`
            fills in; 0 before.
        content: the content of that node, a nest like `TreeSpec.node`, leaves [B, *shape]; where the node is -1, of the
            root.
        action: the edge's action, a nest like `TreeSpec.action`; without one in the spec the slot, int32 [B]. Of slot 0
            where the slot is -1.
    """

    node: BackendArray
    slot: BackendArray
    child: BackendArray
    value: BackendArray
    content: Nest
    action: Nest


def init(lib: TreesLib[A], spec: TreeSpec, root: Expansion, device: DeviceLike = None) -> Tree:
    """Make a batch of trees of one node each, the root: `rb.init(spec, items=root)`.

    Args:
        spec: what the trees hold.
        root: the content of the B roots, with prior [B, A], value [B] and valid [B, A]; reward and discount say
            nothing.
        device: where the arrays lie; by default where the prior of the roots is, and where the backend makes new arrays
            if that is NumPy's.

    Returns:
        The trees.

    Raises:
        TypeError: for a leaf of another dtype or kind, naming it.
        ValueError: for a missing leaf, another structure, or a shape that does not fit, naming the leaf.

    Example:
        >>> spec = frb.trees.TreeSpec(node={"position": frb.Unbounded((), "int32")}, capacity=17, children=2)
        >>> value, prior = np.zeros(3, np.float32), np.zeros((3, 2), np.float32)
        >>> tree = rb.init(spec, items=frb.trees.Expansion({"position": np.zeros(3, np.int32)}, prior, value))
        >>> tree.batch, tree.size.tolist()
        ((3,), [1, 1, 1])
    """
    evaluated_root = evaluated(lib, spec, root, None, "init")
    if device is None:  # NumPy's arrays go where the backend makes new ones
        device = lib.device_of(root.prior) if isinstance(root.prior, lib.array) else lib.device_by_default()
    evaluated_root = lib.put(evaluated_root, device)
    return lib.run(core.init, evaluated_root, static=(spec, lib.device_of(evaluated_root.prior)))


def select(
    lib: TreesLib[A], tree: Tree, key: PRNGKey, score: Score | None = None, max_depth: int | None = None
) -> Leaf:
    """Go down from the root, one slot after the other, to an edge behind which no node is stored.

    A terminal node is an end too, and so is the largest depth: then the leaf has a child.

    Args:
        tree: the batch of trees.
        key: randomness, from `key(seed)` or `split`, by which ties are broken; for the whole batch.
        score: how slots are chosen; `frb.trees.PUCT()` by default.
        max_depth: how many edges are taken at most; by default as many as there are.

    Returns:
        The edge of each tree, what a model is asked about it, and what lies behind it.

    Example:
        >>> spec = frb.trees.TreeSpec(node=(frb.Unbounded(()),), capacity=4, children=2)
        >>> prior = np.log(np.array([[0.2, 0.8]], np.float32))
        >>> tree = rb.init(spec, items=frb.trees.Expansion((np.zeros(1, np.float32),), prior, np.zeros(1, np.float32)))
        >>> leaf = rb.trees.select(tree, rb.key(0))
        >>> leaf.node.tolist(), leaf.slot.tolist(), leaf.child.tolist()
        ([0], [1], [-1])
    """
    _check_tree(lib, tree, "trees.select")
    score = _score(tree, PUCT() if score is None else score, "trees.select")
    lib.check_key(key)
    edge, *asked = lib.run(_select, tree, key, static=(score, _depth(max_depth, "trees.select"), lib.draws))
    content, action = _nests(lib, tree, *asked)
    return Leaf(edge.node, edge.slot, edge.child, edge.value, content, action)


def expand(lib: TreesLib[A], tree: Tree, leaf: Leaf, expansion: Expansion) -> tuple[Tree, Leaf]:
    """Store the nodes behind the edges at which `select` ended.

    Where a node is stored already, or the tree cannot be searched, nothing is. A full tree stores none, and counts
    that in `refused`; the value goes back all the same.

    Args:
        tree: the batch of trees.
        leaf: what `select` gave. An edge that the tree does not have counts as none.
        expansion: what the model tells of the nodes, for the whole batch.

    Returns:
        The trees, and the leaf with the nodes and the values to back up.

    Raises:
        TypeError: for a leaf of another dtype or kind, naming it.
        ValueError: for a missing leaf, another structure, or a shape that does not fit, naming the leaf.

    Example:
        >>> spec = frb.trees.TreeSpec(node=(frb.Unbounded(()),), capacity=4, children=2)
        >>> prior = np.zeros((1, 2), np.float32)
        >>> def state_of(value):
        ...     return frb.trees.Expansion((np.zeros(1, np.float32),), prior, np.full(1, value, np.float32))
        >>> tree = rb.init(spec, items=state_of(0.0))
        >>> tree, leaf = rb.trees.expand(tree, rb.trees.select(tree, rb.key(0)), state_of(2.0))
        >>> tree = rb.trees.backup(tree, leaf)
        >>> tree.size.tolist(), leaf.child.tolist(), tree.visits[0].tolist(), tree.value[0].tolist()
        ([2], [1], [2, 1, 0, 0], [1.0, 2.0, 0.0, 0.0])
    """
    _check_tree(lib, tree, "trees.expand")
    edge = _edge(lib, tree, leaf, "trees.expand")
    answer = evaluated(lib, tree.spec, expansion, tree.batch, "trees.expand")
    tree, ended = lib.run(_expand, tree, edge, answer, writes=True)
    return tree, leaf._replace(**ended._asdict())


def backup(lib: TreesLib[A], tree: Tree, leaf: Leaf, score: Score | None = None) -> Tree:
    """Bring the values of leaves back to the root, and count the visits on the way.

    Along each edge a value G becomes `reward + discount * G`; nodes and edges have the mean of what passed them.

    Args:
        tree: the batch of trees.
        leaf: what `expand` gave; its value may be one of your own, as of a rollout. One that is NaN or infinite leaves
            the mean of the node as it was, and is counted in `Tree.rejected`.
        score: the score that chose, which may keep statistics of its own.

    Returns:
        The trees; see the example of `expand`.
    """
    _check_tree(lib, tree, "trees.backup")
    edge = _edge(lib, tree, leaf, "trees.backup")
    score = _score(tree, PUCT() if score is None else score, "trees.backup")
    return lib.run(_backup, tree, edge, static=(score,), writes=True)


def search(
    lib: TreesLib[A],
    tree: Tree,
    key: PRNGKey,
    step: AskedStep,
    simulations: int,
    policy: Policy | Score | None = None,
    max_depth: int | None = None,
    chance_step: AskedStep | None = None,
) -> tuple[Tree, Proposal]:
    """Search: simulations that select, expand and back up, one after the other, for a whole batch of trees.

    The search goes on with what the trees know already: of another search, or of a `subtree`. Trees that are empty, or
    whose root is terminal, stay as they are.

    Args:
        tree: the batch of trees.
        key: randomness, from `key(seed)` or `split`.
        step: the model, `step(node, action, key) -> Expansion`: what lies behind the actions, for the whole batch. It
            is given a nest like `spec.node`, leaves [B, *shape], a nest like `spec.action`, or the slots int32 [B]
            without one, and a key. On JAX it is traced, and a program is compiled for each function that is given: a
            function made anew at each call is compiled at each call, unless `search` is called in a function of yours
            that is.
        simulations: how many.
        policy: how slots are chosen at the root and below, and what is proposed: `frb.trees.MuZero()` by default,
            `frb.trees.GumbelMuZero()`, or a score alone, of which the most visited slot is proposed.
        max_depth: how many edges a simulation takes at most, those of chance among them; by default as many as there
            are.
        chance_step: where the world is not certain, `chance_step(node, outcome, key) -> Expansion`: what lies behind
            the outcomes of chance nodes, asked as `step` is and in its place. What `step` gives then are afterstates,
            which are chance nodes: their slots are outcomes, with the prior as probabilities. No policy chooses there;
            the visits follow the prior. (Without it, `step` is asked about chance nodes too.)

    Returns:
        The trees, and what is proposed.

    Raises:
        TypeError: for a leaf of another dtype or kind, naming it.
        ValueError: for a missing leaf, another structure, or a shape that does not fit, naming the leaf; for a number
            out of range; for a score that needs a statistic, and for chance nodes, which the spec lacks.

    Example:
        >>> spec = frb.trees.TreeSpec(node={"position": frb.Unbounded((), "int32")}, capacity=33, children=2)
        >>> prior, value = rb.zeros(frb.Unbounded((2,)), batch=3), rb.zeros(frb.Unbounded(()), batch=3)
        >>> def step(node, action, key):  # right (1) is worth 1, left (0) nothing
        ...     position = node["position"] + 2 * action - 1
        ...     return frb.trees.Expansion({"position": position}, prior, value, reward=value + action, discount=0.9)
        >>> tree = rb.init(spec, items=frb.trees.Expansion({"position": np.zeros(3, np.int32)}, prior, value))
        >>> tree, proposal = rb.trees.search(tree, rb.key(0), step, simulations=32)
        >>> [weights[1] > 0.5 for weights in proposal.weights.tolist()], tree.visits[:, 0].tolist()
        ([True, True, True], [33, 33, 33])
    """
    _check_tree(lib, tree, "trees.search")
    chosen: Any = MuZero() if policy is None else policy
    if isinstance(chosen, Score):  # MuZero's policy without any noise proposes the most visited slot
        chosen = MuZero(chosen, dirichlet_fraction=0.0, temperature=0.0)
    if not all(hasattr(chosen, name) for name in ("begin", "choose", "propose", "score")):
        raise TypeError(f"trees.search: expected a policy such as frb.trees.MuZero(), or a score, got {policy!r}")
    _score(tree, chosen.score, "trees.search")
    try:
        count = operator.index(simulations)
    except TypeError:
        raise TypeError(f"trees.search: expected simulations as an int, got {simulations!r}") from None
    if count < 1:
        raise ValueError(f"trees.search: expected at least 1 simulation, got {count}")
    if not callable(step):
        raise TypeError(f"trees.search: expected step as a function, got {type(step).__name__}")
    if chance_step is not None and not callable(chance_step):
        raise TypeError(f"trees.search: expected chance_step as a function, got {type(chance_step).__name__}")
    if chance_step is not None and not tree.spec.chance:
        raise ValueError("trees.search: chance_step was given, but the spec has no chance nodes; give " + _CHANCE)
    depth = _depth(max_depth, "trees.search")
    lib.check_key(key)
    tree, slot, weights = lib.searching(lib, tree, key, Search(step, count, chosen, depth, chance_step))
    if tree.spec.action_content is None:
        return tree, Proposal(slot, slot, weights)
    of_slot = lib.run(core.content_of, tree, core.Leaf(slot * 0, slot, slot, weights[:, 0]))
    return tree, Proposal(slot, _nests(lib, tree, *of_slot)[1], weights)


def callers(lib: TreesLib[A], tree: Tree, search: Search) -> tuple[Step, Step | None]:
    """A user's functions, asked about the leaves of nodes and of actions, with their answers checked."""

    def asking(function: Callable[..., object], name: str, chance: bool) -> Step:
        # `chance` is what holds for nodes of which the answer does not say whether they are chance nodes.
        def ask(node: list[Array], action: list[Array] | Array, key: PRNGKey) -> Evaluated:
            answer = function(*_nests(lib, tree, node, action), key)
            if chance and isinstance(answer, Expansion) and answer.chance is None:
                answer = answer._replace(chance=True)
            return evaluated(lib, tree.spec, answer, tree.batch, name)

        return ask

    if search.chance_step is None:
        return asking(search.step, "step", False), None
    return asking(search.step, "step", True), asking(search.chance_step, "chance_step", False)


def subtree(lib: TreesLib[A], tree: Tree, slot: object) -> Tree:
    """Go on from a child of each root, with all that is known of what lies below it.

    Args:
        tree: the batch of trees.
        slot: int32 [B], the slot that was taken, such as `proposal.slot`.

    Returns:
        Trees whose roots are those children. Where no node is stored behind the slot, or the slot is -1, the tree is
        empty (`tree.size` is 0): begin it anew by `reset`.

    Example:
        >>> spec = frb.trees.TreeSpec(node=(frb.Unbounded(()),), capacity=4, children=2)
        >>> zeros = np.zeros(2, np.float32)
        >>> nothing = frb.trees.Expansion((zeros,), np.zeros((2, 2), np.float32), zeros)
        >>> tree = rb.init(spec, items=nothing)
        >>> tree, leaf = rb.trees.expand(tree, rb.trees.select(tree, rb.key(0)), nothing)
        >>> slot = np.array([leaf.slot.tolist()[0], 1 - leaf.slot.tolist()[1]], np.int32)
        >>> rb.trees.subtree(tree, slot).size.tolist()
        [1, 0]
    """
    _check_tree(lib, tree, "trees.subtree")
    chosen = _array(lib, slot, INDEX, tree.batch, "trees.subtree", "slot")
    return lib.run(reuse.subtree, tree, chosen, static=(lib.device_of(tree.size),))


def reset(lib: TreesLib[A], tree: Tree, mask: ArrayLike, root: Expansion) -> Tree:
    """Begin some trees of a batch anew.

    Args:
        tree: the batch of trees.
        mask: bool [B], which.
        root: the new roots, as for `init`, for the whole batch; the rows that the mask leaves out count for nothing.

    Returns:
        The trees, those of the mask with one node, the others as they were.

    Example:
        >>> spec = frb.trees.TreeSpec(node=(frb.Unbounded(()),), capacity=4, children=2)
        >>> prior = np.zeros((2, 2), np.float32)
        >>> def of_value(x):
        ...     return frb.trees.Expansion((np.zeros(2, np.float32),), prior, np.full(2, x, np.float32))
        >>> tree = rb.trees.reset(rb.init(spec, items=of_value(1)), np.array([False, True]), of_value(2))
        >>> tree.summary().value.tolist()
        [1.0, 2.0]
    """
    _check_tree(lib, tree, "trees.reset")
    mask = _array(lib, mask, MASK, tree.batch, "trees.reset", "mask")
    answer = evaluated(lib, tree.spec, root, tree.batch, "trees.reset")
    where = lib.device_of(tree.size)
    mask, answer = lib.put((mask, answer), where)
    return lib.run(reuse.reset, tree, mask, answer, static=(where,))


def _select(
    ops: TreeOps, tree: Tree, key: PRNGKey, score: Score, max_depth: int, draws: Callable[..., Array]
) -> tuple[core.Leaf, list[Array], list[Array] | Array]:
    leaf = core.select_by(ops, tree, score, draws(key, tree.batch[0], 1, tree.size)[:, 0], max_depth)
    return leaf, *core.content_of(ops, tree, leaf)


def _expand(ops: TreeOps, tree: Tree, leaf: core.Leaf, answer: Evaluated) -> tuple[Tree, core.Leaf]:
    return core.expand(ops, tree, core.within(ops, tree, leaf), answer)


def _backup(ops: TreeOps, tree: Tree, leaf: core.Leaf, score: Score) -> Tree:
    return core.backup(ops, *core.valued(ops, tree, core.within(ops, tree, leaf)), score)


def evaluated(
    lib: TreesLib[A], spec: TreeSpec, expansion: object, batch: tuple[int, ...] | None, function: str
) -> Evaluated:
    """An `Expansion` as arrays of the backend, checked, with its defaults filled in; the batch None is the prior's."""
    if not isinstance(expansion, Expansion):
        raise TypeError(f"{function}: expected a frb.trees.Expansion, got {type(expansion).__name__}")
    if batch is None:
        shape = tuple(getattr(expansion.prior, "shape", ()))
        if len(shape) != 2:
            raise ValueError(f"{function}: prior: expected shape [B, {spec.children}], got {list(shape)}")
        batch = shape[:1]
    edges = (*batch, spec.children)
    # The prior comes first: numbers that stand for all nodes are put where it lies.
    prior = _numbers(lib, expansion.prior, FLOAT, edges, function, "prior")

    def filled(name: str, value: object, expected: ArraySpec, shape: tuple[int, ...]) -> Array:
        if isinstance(value, (bool, int, float)):
            return lib.ops.full_like(lib.ops.zeros(shape, expected.dtype, lib.device_of(prior)), value)
        return _numbers(lib, value, expected, shape, function, name)

    if spec.action_content is None and expansion.actions is not None:
        raise ValueError(f"{function}: actions were given, but the spec has no action; give TreeSpec(action=...)")
    if spec.action_content is not None and expansion.actions is None:
        raise ValueError(f"{function}: the spec has an action, but Expansion.actions is missing")
    if expansion.chance is not None and not spec.chance:
        raise ValueError(f"{function}: Expansion.chance was given, but the spec has no chance nodes; give {_CHANCE}")
    return Evaluated(
        node=_leaves(lib, spec.node_content, expansion.node, batch, function, "node"),
        prior=prior,
        value=filled("value", expansion.value, FLOAT, batch),
        reward=filled("reward", expansion.reward, FLOAT, batch),
        discount=filled("discount", expansion.discount, FLOAT, batch),
        valid=filled("valid", True if expansion.valid is None else expansion.valid, MASK, edges),
        terminal=filled("terminal", False if expansion.terminal is None else expansion.terminal, MASK, batch),
        actions=[]
        if spec.action_content is None
        else _leaves(lib, spec.action_content, expansion.actions, edges, function, "actions"),
        chance=filled("chance", False if expansion.chance is None else expansion.chance, MASK, batch),
    )


def _leaves(
    lib: TreesLib[A], content: Content, value: object, lead: tuple[int, ...], function: str, what: str
) -> list[Array]:
    outline = content.outline
    leaves = nest.flatten_as(outline.structure, value)
    named = zip(leaves, outline.leaves, outline.names, strict=True)
    return [
        _array(lib, leaf, expected, (*lead, *expected.shape), function, f"{what} {name!r}")
        for leaf, expected, name in named
    ]


def _array(
    lib: TreesLib[A], value: object, expected: ArraySpec, shape: tuple[int, ...], function: str, name: str
) -> Array:
    array = lib.convert(value, expected, f"{function}: {name}")
    if tuple(array.shape) != shape:
        raise ValueError(f"{function}: {name}: expected shape {list(shape)}, got {list(array.shape)}")
    return array


def _numbers(
    lib: TreesLib[A], value: object, expected: ArraySpec, shape: tuple[int, ...], function: str, name: str
) -> Array:
    # Models under autocast give floats of half precision, which are widened exactly.
    dtype = dtypes.shown(getattr(value, "dtype", expected.dtype))
    if expected.dtype == "float32" and dtype in ("float16", "bfloat16"):
        return lib.ops.cast(_array(lib, value, Unbounded((), dtype), shape, function, name), "float32")
    return _array(lib, value, expected, shape, function, name)


def _edge(lib: TreesLib[A], tree: Tree, leaf: object, function: str) -> core.Leaf:
    if not isinstance(leaf, Leaf):
        raise TypeError(f"{function}: expected a leaf, as rb.trees.select gives it, got {type(leaf).__name__}")
    kinds = zip(core.Leaf._fields, leaf[:4], (INDEX, INDEX, INDEX, FLOAT), strict=True)
    return core.Leaf(*(_array(lib, x, kind, tree.batch, function, f"leaf.{name}") for name, x, kind in kinds))


def _nests(lib: TreesLib[A], tree: Tree, node: list[Array], action: BackendArray) -> tuple[Nest, Nest]:
    def together(content: Content, leaves: list[Array]) -> Nest:
        return nest.unflatten(content.outline.structure, leaves, lib.build_mapping, tree.batch)

    spec = tree.spec
    return together(spec.node_content, node), (
        action if spec.action_content is None else together(spec.action_content, action)
    )


def _check_tree(lib: TreesLib[A], tree: object, function: str) -> None:
    if not isinstance(tree, Tree):
        raise TypeError(f"{function}: expected a frb.trees.Tree, got {type(tree).__name__}; rb.init makes one")
    if not isinstance(tree.parent, lib.array):
        raise TypeError(f"{function}: expected a tree of this backend; bring it over by rb.from_dlpack(tree)")
    if len(tree.batch) != 1:
        raise ValueError(
            f"{function}: expected a tree with one batch axis, got batch={tree.batch}; jax.vmap maps over more"
        )


def _score(tree: Tree, score: object, function: str) -> Score:
    if not isinstance(score, Score):
        raise TypeError(f"{function}: expected a score such as frb.trees.PUCT(), got {score!r}")
    for name in score.statistics:
        if name not in tree.spec.statistics:
            raise ValueError(
                f"{function}: {type(score).__name__} needs a statistic that the spec lacks; "
                f"give TreeSpec(..., statistics={name!r})"
            )
    return score


def _depth(max_depth: object, function: str) -> int:
    if max_depth is None:
        return INT32_MAX
    if isinstance(max_depth, bool) or not isinstance(max_depth, int) or max_depth < 1:
        raise ValueError(f"{function}: expected max_depth as an int from 1 on, or None, got {max_depth!r}")
    return max_depth
