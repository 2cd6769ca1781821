// The protocol of buffers that processes share (docs/shared.md): `functional_rb.shared` calls these between its locks.
//
// control: int64 words, see `functional_rb/native/shared_control.py`. journal: 3 + wide arrays, the slots int32, values
// float32, and items that a write saves. room: int64 [2], how many slots the journal has room for: with their priorities
// alone, and with their items.
//
// x86 keeps the order of stores and of loads by itself, ARM does not, and compilers on neither: hence the atomics.
#pragma once
#include "buffer.h"

FRB_BEGIN

enum ControlWord { SEQUENCE = 0, RESERVED = 8, KIND = 16, FIRST = 17, COUNT = 18, HAS_ROWS = 19, CONTROL_COUNTERS = 32 };
enum WriteKind { ADD = 1, UPDATE = 2, CLEAR = 3 };
constexpr int64_t SLOT = 16, SLOT_WORDS = 8, LOST = COUNTERS;
// What the functions that read return: there were writes all the time; there is nothing to draw or read; it is done.
enum Read { TORN = -1, NOTHING = 0, DRAWN = 1 };
// What `repair` and `problem_of_control` find.
enum Problem { SOUND, BAD_WORDS, BAD_COUNTERS, BAD_INTENT, BAD_JOURNAL };
constexpr int32_t INFINITY_BITS = 0x7F800000;
constexpr int SPINS = 5000;  // how often a reader looks whether a write is over: some 10 us, longer than one usually takes
constexpr int TRIES = 8;     // how often it reads anew, because there was a write meanwhile

using Control = int64_t*;

FRB_INLINE int64_t word(Control control, int64_t place) { return __atomic_load_n(control + place, __ATOMIC_ACQUIRE); }
FRB_INLINE void set_word(Control control, int64_t place, int64_t value) {
  __atomic_store_n(control + place, value, __ATOMIC_RELEASE);
}

// The counters that are in force at a sequence number, even or odd.
FRB_INLINE int32_t* counters_at(Control control, int64_t sequence) {
  return reinterpret_cast<int32_t*>(control + CONTROL_COUNTERS + SLOT_WORDS * ((sequence >> 1) & 1));
}

// A write begins: its intent is in the journal, and none of it elsewhere yet.
FRB_ENTRY void shared_begin(Control control) {
  set_word(control, SEQUENCE, word(control, SEQUENCE) + 1);
  __atomic_thread_fence(__ATOMIC_RELEASE);
}

// End a write: one store puts the new counters in force, of which the first COUNTERS are there already.
FRB_ENTRY void shared_commit(Control control, int64_t lost) {
  const int64_t sequence = word(control, SEQUENCE);
  const int32_t* old = counters_at(control, sequence);
  int32_t* changed = counters_at(control, sequence + 1);
  memcpy(changed + COUNTERS, old + COUNTERS, size_t(SLOT - COUNTERS) * sizeof(int32_t));
  changed[LOST] = saturated(int64_t(old[LOST]) + lost);
  set_word(control, SEQUENCE, sequence + 1);
}

// Whether no write has begun since the sequence number was read: all that was read since is of one moment.
FRB_ENTRY bool shared_unchanged(Control control, int64_t sequence) {
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  return word(control, SEQUENCE) == sequence;
}

// Copy the counters in force, int32 [SLOT] or less; returns their sequence number, an odd one if it could not.
FRB_ENTRY int64_t shared_read_counters(Control control, Span<int32_t> counters) {
  for (int k = 0; k < TRIES; ++k) {
    int64_t sequence = word(control, SEQUENCE);
    for (int spin = 0; spin < SPINS && sequence & 1; ++spin) sequence = word(control, SEQUENCE);
    if (sequence & 1) continue;
    memcpy(counters.at, counters_at(control, sequence), size_t(counters.size) * sizeof(int32_t));
    if (shared_unchanged(control, sequence)) return sequence;
  }
  return 1;
}

// Note in the journal which slots an add will write; it saves nothing, as these slots hold the oldest items.
FRB_ENTRY void shared_note_add(Control control, Plan plan, int64_t marked) {
  const int64_t capacity = plan->capacity, cursor = counters_at(control, word(control, SEQUENCE))[CURSOR];
  set_word(control, KIND, ADD);
  set_word(control, FIRST, floor_mod(cursor + most<int64_t>(marked - capacity, 0), capacity));
  set_word(control, COUNT, least(marked, capacity));
}

// Save in the journal what an update will overwrite, for which it has room; returns of how many slots.
FRB_ENTRY int64_t shared_note_update(Control control, Plan plan, Addresses storage, Span<const float> tree, Addresses journal,
                                  Span<const int32_t> handles, bool has_rows) {
  const int32_t* counters = counters_at(control, word(control, SEQUENCE));
  int32_t* slots = reinterpret_cast<int32_t*>(journal[0]);
  float* values = reinterpret_cast<float*>(journal[1]);
  const Finder find(plan, counters);
  int64_t live = 0;
  for (int64_t i = 0; i < handles.size; ++i) {
    const int64_t slot = find(handles[i]);
    if (slot < 0) continue;
    slots[live] = int32_t(slot);
    if (plan->levels) values[live] = tree[slot];
    if (has_rows) save_items(plan, storage, slot, journal.part(2, journal.size - 2), live, 1);
    ++live;
  }
  set_word(control, KIND, UPDATE);
  set_word(control, COUNT, live);
  set_word(control, HAS_ROWS, has_rows);
  return live;
}

// Note in the journal that all items will be taken out.
FRB_ENTRY void shared_note_clear(Control control) { set_word(control, KIND, CLEAR); }

// Take all items out of the tree, and of the counters that will be in force after this write.
FRB_ENTRY void shared_empty(Control control, Span<float> tree) {
  const int64_t sequence = word(control, SEQUENCE);
  int32_t* counters = counters_at(control, sequence + 1);
  memcpy(counters, counters_at(control, sequence), COUNTERS * sizeof(int32_t));
  counters[SIZE] = counters[PEAK] = 0;
  memset(tree.at, 0, size_t(tree.size) * sizeof(float));
}

// SOUND, or what of the control file no writer leaves so, whoever died: any process may have written anything.
FRB_ENTRY int64_t shared_problem_of_control(Control control, Plan plan) {
  const int64_t capacity = plan->capacity, sequence = word(control, SEQUENCE), reserved = word(control, RESERVED);
  if (sequence < 0 || sequence > INT64_MAX - 2 || reserved < 0 || reserved > capacity) return BAD_WORDS;
  const int32_t* counters = counters_at(control, sequence);
  for (int k = 0; k < COUNTERS; ++k)
    if (counters[k] < 0) return BAD_COUNTERS;
  const int64_t cursor = counters[CURSOR], size = counters[SIZE];
  const bool bad = cursor >= plan->modulus || size > capacity || counters[PEAK] >= INFINITY_BITS || counters[LOST] < 0;
  // Read after the counters: it only grows, and room is taken before anything is written.
  if (!bad && most(size, least(cursor, capacity)) > word(control, RESERVED)) return BAD_WORDS;
  return bad ? BAD_COUNTERS : SOUND;
}

// Make slots around the ring as if they had never been written.
inline void shared_clear(const Plan& plan, Addresses storage, float* tree, int64_t first, int64_t count) {
  const int64_t head = least(count, plan->capacity - first);
  auto forget = [&](int64_t start, int64_t n) {
    for (int64_t array = 0; array < storage.size; ++array) {
      const int64_t bytes = plan.stored_bytes(array);
      if (n && bytes) memset(place(storage[array]) + start * bytes, 0, size_t(n * bytes));
    }
    if (plan->levels && n) {
      memset(tree + start, 0, size_t(n) * sizeof(float));
      refresh_range(plan, tree, start, n);
    }
  };
  forget(first, head);
  forget(0, count - head);
}

// Undo the write of a process that has died, if there is one; a process that dies here leaves it to the next.
//
// An add may have damaged the oldest items, which it was to replace: they are given up. An update is undone from the
// journal. A clear is carried on to its end. Returns SOUND, or what is damaged: then nothing has been changed.
FRB_ENTRY int64_t shared_repair(Control control, Plan plan, Addresses storage, Span<float> tree, Addresses journal,
                             const int64_t* room) {
  const int64_t sequence = word(control, SEQUENCE), problem = shared_problem_of_control(control, plan);
  if (!(sequence & 1) || problem != SOUND) return problem;
  const int64_t kind = word(control, KIND), count = word(control, COUNT), has_rows = word(control, HAS_ROWS);
  const int64_t first = word(control, FIRST), capacity = plan->capacity, reserved = word(control, RESERVED);
  // Whether a write can have begun that the control file tells of so: it had room for what it was to write.
  bool begun = kind == CLEAR;
  if (kind == ADD)
    begun = 0 <= first && first < capacity && 0 <= count && count <= capacity && least(first + count, capacity) <= reserved;
  if (kind == UPDATE) begun = (has_rows == 0 || has_rows == 1) && 0 <= count && count <= room[has_rows];
  if (!begun) return BAD_INTENT;
  const int64_t saved = kind == UPDATE ? count : 0;
  Scratch<int32_t> slots(saved);
  Scratch<float> values(saved);
  if (saved) memcpy(slots.at, place(journal[0]), size_t(saved) * sizeof(int32_t));
  if (saved && plan->levels) memcpy(values.at, place(journal[1]), size_t(saved) * sizeof(float));
  for (int64_t i = 0; i < saved; ++i) {
    if (slots[i] < 0 || slots[i] >= reserved) return BAD_JOURNAL;
    if (plan->levels && !(values[i] >= 0 && values[i] <= LARGEST)) return BAD_JOURNAL;
  }
  int32_t* counters = counters_at(control, sequence + 1);
  memcpy(counters, counters_at(control, sequence), COUNTERS * sizeof(int32_t));
  if (kind == CLEAR) {
    shared_empty(control, tree);
  } else if (kind == ADD) {
    counters[SIZE] = int32_t(least<int64_t>(counters[SIZE], capacity - count));
    shared_clear(plan, storage, tree.at, first, count);
  } else {
    for (int64_t at = 0; has_rows && at < saved; ++at)
      for (int64_t array = 0; array < storage.size; ++array) {
        const int64_t bytes = plan.stored_bytes(array);
        if (bytes) copy(place(storage[array]) + slots[at] * bytes, place(journal[2 + array]) + at * bytes, bytes);
      }
    if (plan->levels) set_leaves(plan, {tree.at}, slots, values.at);
  }
  shared_commit(control, kind == ADD ? count : 0);
  return SOUND;
}

// What `read` finds by the counters of a moment between two writes, NOTHING or DRAWN; TORN if there were writes all the
// time. It may ask meanwhile whether none has come so far.
template <class F> int64_t between_writes(Control control, const F& read) {
  Scratch<int32_t> counters(COUNTERS);
  for (int k = 0; k < TRIES; ++k) {
    const int64_t sequence = shared_read_counters(control, counters);
    if (sequence & 1) return TORN;
    const int64_t number = read(counters.at, [&] { return shared_unchanged(control, sequence); });
    if (shared_unchanged(control, sequence)) return number;
  }
  return TORN;
}

// Draw as `draw` does, by random bits. The slots are known to be right before their rows are read: beyond those in use,
// files have no room on the disk.
inline int64_t draw_between_writes(BufferCall call, Matrix<const int32_t> draws) {
  Scratch<int32_t> slots(call.batch);
  return between_writes(call.control, [&](const int32_t* counters, const auto& unchanged) -> int64_t {
    call.counters = counters;
    const bool drawn = draw_slots(call, draws, slots.at);
    if (drawn && unchanged()) load_items(plan_of(call), storage_of(call), slots.at, call.batch, leaves_of(call));
    return drawn ? DRAWN : NOTHING;
  });
}
FRB_ENTRY int64_t shared_draw(Addresses storage, Addresses leaves, Control control, Plan plan, Span<const float> tree,
                              Array<const int32_t, 2> draws, float beta, Span<int32_t> handles, float* weights,
                              float* probabilities) {
  BufferCall call{};
  call.plan = reinterpret_cast<const int32_t*>(plan.at), call.storage = storage.at, call.arrays = storage.size;
  call.items = leaves.at, call.given = leaves.size, call.tree = const_cast<float*>(tree.at), call.beta = beta;
  call.control = control, call.batch = handles.size;
  call.handles = handles.at, call.weights = weights, call.probabilities = probabilities;
  return draw_between_writes(call, {draws.at, draws.shape[0], draws.shape[1]});
}

FRB_ENTRY Outcome sample_shared(const BufferCall& call) {
  const int64_t outcome = draw_between_writes(call, Bits(call).all);
  return outcome == DRAWN ? DONE : outcome == NOTHING ? NONE_DRAWN : DRAWN_TORN;
}

// Read items by handle, and which of them are live. In place of an item that is gone some other is read; NOTHING is
// returned if the buffer is empty.
FRB_ENTRY int64_t shared_fetch(Addresses storage, Addresses leaves, Control control, Plan plan, Span<const int32_t> handles,
                               Span<uint8_t> live) {
  Scratch<int32_t> slots(handles.size);
  return between_writes(control, [&](const int32_t* counters, const auto&) -> int64_t {
    const Finder find(plan, counters);
    for (int64_t i = 0; i < handles.size; ++i) {
      const int64_t slot = find(handles[i]);
      live[i] = slot >= 0;
      slots[i] = int32_t(slot >= 0 ? slot : floor_mod(int64_t(counters[CURSOR]) - 1, plan->capacity));
    }
    if (counters[SIZE] == 0) return NOTHING;
    load_items(plan, storage, slots.at, handles.size, leaves);
    return DRAWN;
  });
}

FRB_END
