// The kernels for one set of instructions, FRB_ISA: this file is compiled once for each.
#include "added.h"
#include "bind.h"
#include "buffer_frame.h"
#include "hash_map.h"
#include "images.h"
#include "mixtures.h"
#include "ragged.h"
#include "shared.h"
#include "spans.h"
#include "updates.h"

#define FRB_KERNEL(name) FRB_METHOD(#name, frb::name)
#define FRB_HANDLER_OF(name, function) {#name, reinterpret_cast<void*>(&frb::handle<&frb::function>)}
#define FRB_HANDLER(name) FRB_HANDLER_OF(name, name)
#define FRB_FIELDS(record) {frb::record::NAME, frb::record::FIELDS}
#define FRB_JOINED(a, b) a##b
#define FRB_EXPORTS(isa) FRB_JOINED(frb_exports_, isa)

namespace {

PyMethodDef methods[] = {
    FRB_KERNEL(longest), FRB_KERNEL(pad_rows),
    FRB_KERNEL(shared_begin), FRB_KERNEL(shared_commit), FRB_KERNEL(shared_unchanged), FRB_KERNEL(shared_read_counters),
    FRB_KERNEL(shared_note_add), FRB_KERNEL(shared_note_clear), FRB_KERNEL(shared_empty),
    FRB_KERNEL(shared_problem_of_control), FRB_KERNEL(shared_repair), FRB_KERNEL(shared_draw), FRB_KERNEL(shared_fetch),
#ifdef FRB_FAULTS
    FRB_KERNEL(plant),
#endif
    {}};

const frb::Handler handlers[] = {
    FRB_HANDLER(add), FRB_HANDLER(add_to_rings), FRB_HANDLER(draw), FRB_HANDLER(sample_mixture), FRB_HANDLER(update), FRB_HANDLER_OF(update_priorities, update), FRB_HANDLER(read),
    FRB_HANDLER(store), FRB_HANDLER(pack),
    FRB_HANDLER(threefry), FRB_HANDLER(fill_draws), FRB_HANDLER_OF(below, below_each),
    FRB_HANDLER(descend), FRB_HANDLER(draw_in_span), FRB_HANDLER(set_leaves),
    FRB_HANDLER(stored_values), FRB_HANDLER(importance_weights), FRB_HANDLER(updated_values),
    FRB_HANDLER_OF(freshness, freshness_of_each),
    FRB_HANDLER(choose_slots), FRB_HANDLER(steps_in_episodes), FRB_HANDLER(changed), FRB_HANDLER(weights_at),
    FRB_HANDLER(expand), FRB_HANDLER(following), FRB_HANDLER(extent),
    FRB_HANDLER(places), FRB_HANDLER(plan_frames), FRB_HANDLER(overwritten),
    FRB_HANDLER(plan_line), FRB_HANDLER_OF(fold_float32, fold_rewards<float>), FRB_HANDLER_OF(fold_float64, fold_rewards<double>),
    FRB_HANDLER(members), FRB_HANDLER(exchanges), FRB_HANDLER(appended), FRB_HANDLER(distinct),
    FRB_HANDLER(map_lookup), FRB_HANDLER(map_insert), FRB_HANDLER(windows), FRB_HANDLER(barrier), {}};

const frb::RecordFields records[] = {FRB_FIELDS(BufferRecord), FRB_FIELDS(LevelRecord), FRB_FIELDS(LeafRecord),
                                     FRB_FIELDS(RingRecord),   FRB_FIELDS(EpochRecord), FRB_FIELDS(ChainRecord),
                                     FRB_FIELDS(FramesRecord), FRB_FIELDS(StackRecord), FRB_FIELDS(QueueRecord),
                                     FRB_FIELDS(MapRecord),    FRB_FIELDS(KnownRecord),
                                     FRB_FIELDS(MixtureRecord), FRB_FIELDS(PathsRecord), FRB_FIELDS(PlacesRecord), FRB_FIELDS(GoalsRecord), {}};

// A kernel as the version chain calls it.
template <auto F, class... Told> int outcome_of(Told... told) {
  try {
    return F(told...);
  } catch (const std::bad_alloc&) {
    return frb::NO_MEMORY;
  }
}

const frb::Exports exports{methods, handlers, records,
                           {outcome_of<frb::add>, outcome_of<frb::add_to_rings>, outcome_of<frb::update>,
                            outcome_of<frb::update>, outcome_of<frb::draw>, outcome_of<frb::sample_mixture>,
                            outcome_of<frb::sample_shared>}};

}  // namespace

extern "C" const frb::Exports* FRB_EXPORTS(FRB_ISA)() { return &exports; }
