// The kernels for one set of instructions, FRB_ISA: this file is compiled once for each.
#include "added.h"
#include "bind.h"
#include "handlers.h"
#include "ragged.h"
#include "shared.h"

#define FRB_KERNEL(name) FRB_METHOD(#name, frb::name)
#define FRB_HANDLER(name) {#name, reinterpret_cast<void*>(&frb::handle<&frb::handlers::name>)}
#define FRB_FIELDS(record) {frb::record::NAME, frb::record::FIELDS}
#define FRB_JOINED(a, b) a##b
#define FRB_EXPORTS(isa) FRB_JOINED(frb_exports_, isa)

namespace {

PyMethodDef methods[] = {
    FRB_KERNEL(add), FRB_KERNEL(update), FRB_KERNEL(sample), FRB_KERNEL(draw), FRB_KERNEL(longest), FRB_KERNEL(pad_rows),
    FRB_KERNEL(shared_begin), FRB_KERNEL(shared_commit), FRB_KERNEL(shared_unchanged), FRB_KERNEL(shared_read_counters),
    FRB_KERNEL(shared_note_add), FRB_KERNEL(shared_note_clear), FRB_KERNEL(shared_empty),
    FRB_KERNEL(shared_problem_of_control), FRB_KERNEL(shared_repair), FRB_KERNEL(shared_draw), FRB_KERNEL(shared_fetch),
    FRB_KERNEL(shared_can_draw),
#ifdef FRB_FAULTS
    FRB_KERNEL(plant),
#endif
    {}};

const frb::Handler handlers[] = {
    FRB_HANDLER(add), FRB_HANDLER(draw), FRB_HANDLER(threefry), FRB_HANDLER(update), FRB_HANDLER(descend),
    FRB_HANDLER(set_leaves), FRB_HANDLER(read), FRB_HANDLER(store), FRB_HANDLER(pack), FRB_HANDLER(stored_values),
    FRB_HANDLER(importance_weights), FRB_HANDLER(updated_values), FRB_HANDLER(update_priorities),
    FRB_HANDLER(choose_slots), FRB_HANDLER(steps_in_episodes), FRB_HANDLER(changed), FRB_HANDLER(weights_at),
    FRB_HANDLER(expand), FRB_HANDLER(following), FRB_HANDLER(extent), FRB_HANDLER(places), FRB_HANDLER(plan_frames),
    FRB_HANDLER(overwritten), FRB_HANDLER(fold_float32), FRB_HANDLER(fold_float64), FRB_HANDLER(plan_line),
    FRB_HANDLER(map_lookup), FRB_HANDLER(map_insert), FRB_HANDLER(below), FRB_HANDLER(fill_draws), FRB_HANDLER(members),
    FRB_HANDLER(exchanges), FRB_HANDLER(appended), FRB_HANDLER(distinct), FRB_HANDLER(windows), FRB_HANDLER(barrier),
    FRB_HANDLER(draw_in_span), {}};

const frb::RecordFields records[] = {FRB_FIELDS(BufferRecord), FRB_FIELDS(LevelRecord), FRB_FIELDS(LeafRecord),
                                     FRB_FIELDS(RingRecord),   FRB_FIELDS(EpochRecord), FRB_FIELDS(ChainRecord),
                                     FRB_FIELDS(FramesRecord), FRB_FIELDS(StackRecord), FRB_FIELDS(QueueRecord),
                                     FRB_FIELDS(MapRecord),    {}};

// The kernels of buffers as the version chain calls them.
frb::Plan plan_of(const frb::BufferCall& c) { return frb::record_of<frb::Plan>(c.plan); }
frb::Ring ring_of(const frb::BufferCall& c) { return frb::record_of<frb::Ring>(c.ring); }
frb::Addresses storage_of(const frb::BufferCall& c) { return {c.storage, c.arrays}; }
frb::Addresses items_of(const frb::BufferCall& c) { return {c.items, c.item_count}; }
template <class F> int outcome_of(F kernel) {
  try {
    return kernel();
  } catch (const std::bad_alloc&) {
    return frb::NO_MEMORY;
  }
}
int add_to_buffer(const frb::BufferCall& c) {
  return outcome_of([&] {
    frb::add(c.tree, c.counters, c.new_counters, c.mask, c.priorities, c.saved_slots, c.saved_values, storage_of(c),
             items_of(c), plan_of(c), c.batch, c.room, {c.saved_count, 1});
    return frb::DONE;
  });
}
int add_to_rings_of_buffer(const frb::BufferCall& c) {
  return outcome_of([&] {
    frb::add_to_rings(c, plan_of(c), ring_of(c), frb::record_of<frb::Epoch>(c.epoch));
    return frb::DONE;
  });
}
int update_buffer(const frb::BufferCall& c) {
  return outcome_of([&] {
    frb::update(c.tree, c.counters, c.new_counters, c.given_handles, c.priorities, c.saved_slots, c.saved_values,
                storage_of(c), items_of(c), plan_of(c), c.batch, c.given, c.room, {c.saved_count, 1});
    return frb::DONE;
  });
}
int sample_buffer(const frb::BufferCall& c) {
  return outcome_of([&] {
    if (const frb::Ring ring = ring_of(c); ring->lanes > 1) {
      frb::Scratch<int32_t> made(c.draws ? 0 : c.batch * c.words);
      if (!c.draws) frb::fill_random(c.key, made.at, c.batch * c.words);
      return frb::draw_in_rings(c.tree, c.counters, c.draws ? c.draws : made.at, c.handles, c.weights, c.probabilities,
                                storage_of(c), items_of(c), plan_of(c), ring, c.words, c.beta, c.batch)
                 ? frb::DONE
                 : frb::NONE_DRAWN;
    }
    const bool drawn =
        c.draws ? frb::draw(c.tree, c.counters, c.draws, c.handles, c.weights, c.probabilities, storage_of(c), items_of(c),
                            plan_of(c), c.words, c.beta, c.batch)
                : frb::sample(c.tree, c.counters, c.handles, c.weights, c.probabilities, storage_of(c), items_of(c),
                              plan_of(c), c.key, c.words, c.beta, c.batch);
    return drawn ? frb::DONE : frb::NONE_DRAWN;
  });
}
int update_priorities_of_buffer(const frb::BufferCall& c) {
  return outcome_of([&] {
    frb::update_priorities(c.tree, c.kept, c.counters, c.new_counters, c.given_handles, c.priorities, c.in_episode,
                           c.saved_slots, c.saved_values, c.saved_kept, plan_of(c), ring_of(c), c.batch, c.room,
                           {c.saved_count, 1});
    return frb::DONE;
  });
}
int draw_slices_of_buffer(const frb::BufferCall& c) {
  return outcome_of([&] {
    const bool drawn = frb::draw_slices(c.tree, c.counters, c.in_episode, c.draws, c.slots, c.handles, c.drawn, c.is_first, c.is_last,
                          c.truncated, c.weights, c.probabilities, plan_of(c), ring_of(c), c.key, c.words,
                          c.kept != nullptr, c.beta, c.batch);
    // Also where nothing was drawn: these may be some of the slices of a batch, and the rows of masked ones are written too.
    if (c.given) frb::load_items(plan_of(c), storage_of(c), c.slots, c.batch * ring_of(c)->window_length, items_of(c));
    return drawn ? frb::DONE : frb::NONE_DRAWN;
  });
}
int draw_epoch_of_buffer(const frb::BufferCall& c) {
  return outcome_of([&] {
    const frb::Ring ring = ring_of(c);
    const frb::Lanes lanes{c.counters + ring->cursors, c.counters + ring->sizes};
    frb::Scratch<int32_t> made(c.draws ? 0 : c.batch * c.words), found(c.batch);
    frb::Scratch<uint8_t> live(c.batch);
    if (!c.draws) frb::fill_random(c.key, made.at, made.size);
    const int32_t* draws = c.draws ? c.draws : made.at;
    if (!frb::draw_epoch(c.counters, c.new_counters, draws, c.words, found.at, c.weights, c.probabilities, live.at,
                         plan_of(c), frb::record_of<frb::Epoch>(c.epoch), c.batch, frb::deck_of(c)))
      return frb::NONE_DRAWN;
    if (c.slots)  // where slices begin
      frb::cut(ring, lanes, c.in_episode, c.counters + ring->next, found.at, draws + 2, c.words, live.at,
               {c.slots, c.handles, c.drawn, c.is_first, c.is_last, c.truncated}, c.batch);
    for (int64_t i = 0; i < c.batch; ++i) {
      if (!c.slots) c.drawn[i] = live[i], c.handles[i] = live[i] ? frb::handle_in_ring(ring, lanes, found[i]) : -1;
      else if (!c.drawn[i * ring->window_length]) c.weights[i] = c.probabilities[i] = 0;
    }
    frb::load_items(plan_of(c), storage_of(c), c.slots ? c.slots : found.at, c.batch * (c.slots ? ring->window_length : 1),
                    items_of(c));
    return frb::DONE;
  });
}

int sample_shared_buffer(const frb::BufferCall& c) {
  return outcome_of([&]() -> int {
    frb::Scratch<int32_t> draws(c.batch * c.words);
    frb::fill_random(c.key, draws.at, draws.size);
    frb::Array<const int32_t, 2> bits{draws.at, {c.batch, c.words}};
    switch (frb::shared_draw(storage_of(c), items_of(c), c.control, plan_of(c), {c.tree, 0}, bits, c.beta,
                             {c.handles, c.batch}, {c.weights, c.batch}, {c.probabilities, c.batch})) {
      case frb::DRAWN: return frb::DONE;
      case frb::NOTHING: return frb::NONE_DRAWN;
      default: return frb::DRAWN_TORN;
    }
  });
}

const frb::Exports exports{methods, handlers, records,
                           {add_to_buffer, add_to_rings_of_buffer, update_buffer, update_priorities_of_buffer, sample_buffer,
                            draw_slices_of_buffer, draw_epoch_of_buffer, sample_shared_buffer}};

}  // namespace

extern "C" const frb::Exports* FRB_EXPORTS(FRB_ISA)() { return &exports; }
