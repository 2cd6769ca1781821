// What kernels are told of a plan: records of int32, whose fields Python fills in by the names that stand here.
//
// Each record is declared once, by `FRB_RECORD`; `_native.RECORDS` tells Python the names of its fields in their order.
#pragma once
#include "base.h"

#define FRB_RECORD(Name, ...)                        \
  struct Name {                                      \
    int32_t __VA_ARGS__;                             \
    static constexpr const char* NAME = #Name;       \
    static constexpr const char* FIELDS = #__VA_ARGS__; \
  }

FRB_BEGIN

// What kernels draw, numbered as by `buffer.known.Draws`: items, slices of steps, or either that are left of an epoch; items
// without replacement by priority, those that may be drawn so often, in turn, those that are taken out, rather newer ones, or
// those at one end, items where a writer chooses slots, and slices of which new ones come first, which have no launch.
enum Draws { NO_DRAWS, ITEMS, SLICES, EPOCH, EPOCH_OF_SLICES, ARRIVALS, LIMITED, IN_TURN, QUEUE, RECENT, FROM_AN_END, CHOSEN, FRESH_SLICES };

// A buffer: also what is drawn, whether by priorities, how often an item may be, or 0, and how many items a queue gives
// together, or 1, and from which end. Behind it lie the bytes of an item in the rows and in each wide array, the levels of its tree, and its leaves.
FRB_RECORD(BufferRecord, leaves, wide, levels, capacity, modulus, alpha_whole, alpha_fraction, bias_whole,
           bias_fraction, alpha_is_one, ever, draws, prioritized, limit, length, newest_first);

// A level of a sum tree: how many nodes and groups of them, and in which rows their sums, smallest and largest begin.
FRB_RECORD(LevelRecord, nodes, groups, sums, smallest, largest);

// A leaf of an item: in which array it lies (0: the rows), where in an item of it, and how many bytes it has.
FRB_RECORD(LeafRecord, storage, offset, bytes);

// Rings of slots, one a lane, and windows on them; `turns` is how often a lane may be filled before its sequence numbers
// begin again. From `cursors` on they say where in a state's counters what belongs to the lanes begins (`next` is 0
// where no steps in episodes are kept), then which leaf tells trajectories apart, if `newest` is not 0, and how many
// leaves mark the ends of episodes: behind the record it lies which; `completed` is where it is counted how many windows
// of each lane are complete, if these come once while they are new, or 0, and behind that how many of these were given;
// `refused` is where what a buffer that is full refuses, or items without a rank, are counted, or 0; `version` is where
// the version of the policy that learns is, if items are drawn by how stale they are, or 0, `made_by` the leaf that
// tells which one made an item, and `stalest` and `power` are settings, see `freshness`. Of a writer that chooses slots,
// as `Chooses` numbers it, `seen` is where it counts all items, `rank` the leaf by which they are ranked, and
// `reduction` how that becomes one number, see `Reduction`.
FRB_RECORD(RingRecord, capacity, length, lanes, turns, window_length, period, strict, left, right, by_trajectory,
           counters, cursors, sizes, next, newest, id, ends, completed, refused, version, made_by, stalest, power, chooses, seen,
           rank, reduction);

enum Chooses { IN_ORDER, RESERVOIR, BEST };
enum Reduction { SUM, MEAN, MAX, MIN, MEDIAN, WHOLE_NUMBER };

// The epochs of draws without replacement: places among the counters, and a setting; of epochs in order also where the counters
// begin that tell where each lane goes on, and where it ends.
FRB_RECORD(EpochRecord, count, remaining, epochs_done, drop_last, next, end);

// Frames that are stored once: `step` and `jump` say how far on the newest frame is that is asked for.
FRB_RECORD(ChainRecord, length, room, limit, depth, paired, item_limit, stack, step, jump);

// What is told behind a chain of frames: where its cursors begin among the counters, and how many stacks there are. Behind
// these lie the stacks, and which of the leaves that are given are stored as they are.
FRB_RECORD(FramesRecord, cursor, stacks);

// A leaf that is stored as frames, of which a stack has `depth`; the leaf that has its next value, or -1; and how a frame
// lies in it: `outer` pieces of so many bytes, each among as many as there are frames.
FRB_RECORD(StackRecord, leaf, following, depth, outer, bytes);

// Steps that wait until there are n: where in the counters it says how many wait, leaves by their positions or -1, how many
// agents there are that may be done one by one, or 1, and how many leaves of a kind. Behind it lie those that mark ends, those
// that come from the last step of all, those from each agent's own, those that say when one is done, the rewards, of each how
// many agents have their own and its dtype too, see `RewardDtype`, and powers of the discount, float64. Of returns that are made
// as items are read `pending` is where a leaf says how many steps each is, or -1 if that is to be found.
FRB_RECORD(QueueRecord, n, lanes, pending, id, terminated, truncated, agents, ends, following, own, done, rewards, powers);

// A hash map, and its seed: two words of bits, and what lies above these. Behind it lie masks, factors and signs, each as many as words.
FRB_RECORD(MapRecord, capacity, words, table_size, hash_bits, mask, factor, seed_low, seed_high, seed_above);

// A mixture of buffers that single items are drawn from, and which of them gives its rows: whether the batch is shared out
// exactly, else how many rows are chosen for together, and in how many parts, or 0; whether shares are in proportion to what
// is stored, else they stand behind it as float32 if no array has them; and whether there are weights.
FRB_RECORD(MixtureRecord, buffers, number, exact, rows_of_a_part, parts, by_size, weighs);

// What one buffer of a mixture, or a mixture in it, has drawn and where it goes: its number; how many columns its handles have,
// and those of the mixture; steps of a row; whether each draw has a chance of its own; whether weights come in place of
// chances, and are not all 1; and how many arrays there are, of which the first are flags. Behind it lie the bytes of a row
// of each.
FRB_RECORD(PlacesRecord, number, columns, columns_of_all, steps, has_chances, tells_weights, weighs, arrays, flags);

// Handles of a mixture, which have so many columns. Behind it lie the numbers that name each buffer, for each column but the last.
FRB_RECORD(PathsRecord, buffers, columns);

// What the version chain knows of a buffer: how many random words an item takes, the spec's own size of a batch, or -1, how
// much of such a size a draw is, how many lanes users' batches have, or 0, how many items a draw gives, and whether along an
// axis of their own; what is drawn, numbered as by `known.Draws`, whether that changes the state, and may be masked;
// whether there are priorities, what may be written to, rewritten, added to in rings, and of what priorities alone set;
// whether users' items are taken as they are, and given out so, are read too (on a GPU later, by a launch of their own), on the
// host with frames that they share, or as arrays of NumPy's; whether it stops when it is full; how many random words each item that is added takes.
FRB_RECORD(KnownRecord, words, batch_size, unit, lanes, length, divided, draws, remembers, masked, prioritized, writes,
           rewrites, appends, updates, adds, samples, reads, later, reads_frames, in_numpy, stops, chosen_by);

// Whose goals items get in hindsight, see `GoalStrategy`; and how many of `whole` equally likely numbers, all but one, say that an
// item gets one, or below which 62 random bits do where that is 0; below 0 all do.
FRB_RECORD(GoalsRecord, strategy, whole, high, low);
enum GoalStrategy { OF_FUTURE, OF_FINAL, OF_EPISODE, OF_ANY };

template <class R> struct Record {
  const R* at = nullptr;
  FRB_INLINE const R* operator->() const { return at; }
  FRB_INLINE const int32_t* behind() const { return reinterpret_cast<const int32_t*>(at + 1); }
};
using Ring = Record<RingRecord>;
using Epoch = Record<EpochRecord>;
using Chain = Record<ChainRecord>;
using Queue = Record<QueueRecord>;
using Map = Record<MapRecord>;
using Mixture = Record<MixtureRecord>;
using Paths = Record<PathsRecord>;
using Places = Record<PlacesRecord>;
using Goals = Record<GoalsRecord>;

// Most frames that a step takes, and how many so many steps of a lane may take, of which no more than a limit count.
FRB_INLINE int64_t frames_of_a_step(const ChainRecord* chain) { return chain->paired ? 2 * chain->depth : chain->depth; }
FRB_INLINE int64_t most_frames(const ChainRecord* chain, int64_t steps, int64_t limit) {
  return least<int64_t>(frames_of_a_step(chain) * steps, limit);
}

template <class R> FRB_INLINE R record_of(const int32_t* numbers) {
  R record;
  record.at = reinterpret_cast<decltype(record.at)>(numbers);
  return record;
}

struct Plan : Record<BufferRecord> {
  FRB_INLINE int64_t stored_bytes(int64_t array) const { return behind()[array]; }
  FRB_INLINE const LevelRecord& level(int64_t k) const {
    return reinterpret_cast<const LevelRecord*>(behind() + 1 + at->wide)[k];
  }
  FRB_INLINE const LeafRecord& leaf(int64_t k) const {
    return reinterpret_cast<const LeafRecord*>(behind() + 1 + at->wide + 5 * at->levels)[k];
  }
};
static_assert(sizeof(LevelRecord) == 5 * sizeof(int32_t), "as Plan::leaf counts it");

// The counters that every state has, and what follows them in shared buffers.
enum Counter { CURSOR, SIZE, REJECTED, STALE, PEAK, INVALID, COUNTERS };

// A count of a tree, which others may have made of anything.
FRB_INLINE int64_t counted(float marks) { return marks > 0 ? int64_t(least(marks, 16777216.0f)) : 0; }

// Children of a node of a tree, and how many levels one has over so many leaves.
constexpr int FANOUT = 16;
constexpr int MOST_LEVELS = 8;  // room for those of any tree: FANOUT to the power of so many is more than 2^31
FRB_INLINE int64_t levels_of(int64_t leaves) {
  int64_t levels = 1;
  for (; leaves > FANOUT; ++levels) leaves = (leaves + FANOUT - 1) / FANOUT;
  return levels;
}

FRB_END
