#include "calls.h"
#include "chain.h"

#include <pthread.h>

#include <optional>
#include <system_error>
#include <thread>

#include "sharing.h"

// The states, versions and memories are Python's (`functional_rb.versions`), so that what is unusual finds them as it left
// them: "not here" is `NotImplemented`, and the plain engine does it. Everything that may fail comes before the first
// change, so that an error, or an interrupt, leaves all states as they were.
namespace frb {
namespace {

// Leaves by their names, all of them or, for what is rewritten, some.
Found take_dict(const KnownBuffer* known, PyObject* items, Batch& batch) {
  Py_ssize_t seen = 0;
  batch.given = int64_t(known->added.size());
  for (int k = 0; k < batch.given; ++k) {
    PyObject* leaf = PyDict_GetItemWithError(items, known->added[size_t(k)].name);
    if (!leaf && PyErr_Occurred()) return Found::FAILED;
    if (leaf ? !batch.take_leaf(k, leaf) : !batch.handles) return Found::ELSEWHERE;
    seen += leaf != nullptr;
  }
  return seen && seen == PyDict_Size(items) ? Found::READY : Found::ELSEWHERE;
}

// Leaves in the order in which they are stored, all of them or, for what is rewritten, some.
Found take_leaves(const KnownBuffer* known, PyObject* leaves, Batch& batch) {
  batch.given = int64_t(known->added.size());
  if (PyList_Size(leaves) != batch.given) return Found::ELSEWHERE;
  for (int k = 0; k < batch.given; ++k) {
    PyObject* leaf = PyList_GetItem(leaves, k);
    if (!(leaf == Py_None && batch.handles) && !batch.take_leaf(k, leaf)) return Found::ELSEWHERE;
  }
  return Found::READY;
}

// The leaves of items, in a flat dict or however else.
Found take_items(Turn& turn, PyObject* items, Batch& batch) {
  const KnownBuffer* known = turn.known();
  if (!known->given.empty() && PyDict_CheckExact(items)) return take_dict(known, items, batch);
  // Mappings of the user's may do anything: read this state, wait for another thread that does, write to it.
  const Ref kept = Ref::to(reinterpret_cast<PyObject*>(turn.place()->known));
  turn.unlock();
  const Ref leaves = called(turn.chain()->given[APART], turn.spec.get(), items);
  if (!leaves) return Found::FAILED;
  const Found again = turn.begin();
  if (again != Found::READY) return again;
  return turn.known() == known ? take_leaves(known, leaves.get(), batch) : Found::ELSEWHERE;
}

// Leaves to rewrite, some of a flat dict's or, from the engine, of a list, each with a row for every handle.
Found take_replacements(const KnownBuffer* known, PyObject* items, Batch& batch) {
  if (items == Py_None) return Found::READY;
  if (!known->rewrites) return Found::ELSEWHERE;
  // Leaves that mark ends of trajectories, or tell versions, are refused by the reference, which has checked those in a list.
  const bool refuses = known->rings()->next || known->rings()->version;
  const bool direct = known->adds && !known->given.empty() && PyDict_CheckExact(items) && !refuses;
  if (!direct && !PyList_Check(items)) return Found::ELSEWHERE;
  const Found found = direct ? take_dict(known, items, batch) : take_leaves(known, items, batch);
  if (known->chain()) {  // frames may be other items' too
    const int32_t *stored = known->stored(), *end = stored + known->leaves.size();
    for (int k = 0; k < batch.given; ++k)
      if (batch.items[k] && std::find(stored, end, k) == end) return Found::ELSEWHERE;
    for (size_t k = 0; k < known->leaves.size(); ++k) batch.items[k] = batch.items[stored[k]];
  }
  batch.given = int64_t(known->leaves.size());  // there may be more, which stay
  return found;
}

// What one call draws.
struct Draw {
  int64_t draws;
  float beta = 0;
  Random random;
  PyObject* given = Py_None;  // arrays that rows are drawn to
  bool frames = true;         // whether frames that items share are read, where they are known
  const int32_t* wanted_at = nullptr;  // on a GPU, how many of the first rows count

  void tell(BufferCall& call) const {
    call.wanted_at = wanted_at;
    call.key = random.key, call.key_at = random.key_at, call.draws = random.bits, call.beta = beta;
  }
};

// --- buffers that processes share -----------------------------------------------------------------------------------

bool is_shared(PyObject* self, PyObject* state) {
  return Py_TYPE(state) == reinterpret_cast<VersionChain*>(self)->type(SHARED_STATE);
}

// The buffer that a state is a handle of, if it is one that the chain knows; else null, and perhaps an error.
Shared* shared_by(const VersionChain* chain, PyObject* state, Ref& buffer) {
  buffer = chain->on ? attribute(state, names.buffer) : Ref();
  if (!buffer || !PyObject_TypeCheck(buffer.get(), shared_type)) return nullptr;
  Shared* shared = reinterpret_cast<Shared*>(buffer.get());
  return shared->parts && shared->known() ? shared : nullptr;
}

// Write what was taken; the handle stays one.
PyObject* written_to(Shared* of, PyObject* state, const Batch& batch) {
  BufferCall call = of->call();
  call.batch = batch.rows, call.items = batch.items, call.given = batch.given;
  call.mask = batch.mask, call.priorities = batch.priorities, call.given_handles = batch.handles;
  const int64_t problem = written(of, call);
  return problem == FAILED ? nullptr : problem == SOUND ? Py_NewRef(state) : not_here();
}

// Whether a batch has no more rows than the serial numbers of items go on by, counting those that waited for others.
bool countable(const KnownBuffer* known, int64_t rows) {
  const int64_t capacity = known->plan()->capacity;
  return rows + known->waiting() <= INT32_MOST / capacity * capacity;
}

PyObject* add_to_shared(const VersionChain* chain, PyObject* const* args) {
  Ref buffer;
  Shared* of = shared_by(chain, args[0], buffer);
  if (!of || !of->known()->adds || !of->known()->writes) return not_here();
  Batch batch(of->known(), chain->arrays, ON_THE_HOST);
  if (!of->known()->given.empty() && PyDict_CheckExact(args[1])) {
    FRB_TRY(take_dict(of->known(), args[1], batch));
  } else {
    const Ref leaves = called(chain->given[APART], of->known()->spec, args[1]);
    if (!leaves) return nullptr;
    FRB_TRY(take_leaves(of->known(), leaves.get(), batch));
  }
  if (batch.rows <= 0 || !countable(of->known(), batch.rows)) return not_here();
  if (!batch.take_mask(args[2]) || !batch.take_priorities(args[3])) return not_here();
  return written_to(of, args[0], batch);
}

PyObject* update_shared(const VersionChain* chain, PyObject* const* args) {
  Ref buffer;
  Shared* of = shared_by(chain, args[0], buffer);
  if (!of) return not_here();
  Batch batch(of->known(), chain->arrays, ON_THE_HOST);
  if (!batch.take_handles(args[1]) || batch.rows <= 0 || !batch.take_priorities(args[2])) return not_here();
  FRB_TRY(take_replacements(of->known(), args[3], batch));
  if (batch.rows > of->parts->room.get()[batch.given > 0]) return not_here();  // in pieces
  return written_to(of, args[0], batch);
}

PyObject* sample_shared(const VersionChain* chain, PyObject* const* args) {
  Ref buffer;
  Shared* of = shared_by(chain, args[0], buffer);
  const Ref device = of ? attribute(args[0], names.device) : Ref();
  const KnownBuffer* known = of ? of->known() : nullptr;
  Draw draw;
  if (!device.is(Py_None) || !known->samples || !take_size(known, args[2], &draw.draws) ||
      !take_beta(known, args[3], &draw.beta) || Py_TYPE(args[1]) != chain->type(TENSOR) ||
      !draw.random.take(chain, known, ON_THE_HOST, args[1], draw.draws))
    return not_here();
  Drawn drawn(known, draw.draws);
  if (!drawn.has_room()) return drawn.no_room();
  BufferCall call = drawn.described(of->call());
  draw.tell(call), call.words = known->words;
  int outcome = run(kernels.sample_shared, call, is_large_draw(call, draw.draws) || word(of->control(), SEQUENCE) & 1);
  if (outcome == DRAWN_TORN) {
    Holding holding;
    const int64_t problem = enter(of, holding);
    if (problem == FAILED) return nullptr;
    if (problem == SOUND) outcome = run(kernels.sample_shared, call, is_large_draw(call, draw.draws));
  }
  if (outcome == NO_MEMORY) return drawn.no_room();
  const Ref sample = outcome == DONE ? drawn.as_sample(chain) : Ref();
  return sample ? PyTuple_Pack(2, args[0], sample.get()) : not_here();
}

// --- writes of values -----------------------------------------------------------------------------------------------

// Have a kernel write what was taken.
PyObject* written(Turn& turn, Write& write, Batch& batch, const Draw& draw, int (*kernel)(const BufferCall&)) {
  if (!kernel) return not_here();
  BufferCall call = call_on(turn, write.counters());
  draw.tell(call);
  call.words = turn.known()->chosen_by;
  call.batch = batch.rows, call.items = batch.items, call.given = batch.given;
  call.mask = batch.mask, call.priorities = batch.priorities, call.given_handles = batch.handles;
  FRB_TRY(write.carry_out(kernel, call, batch.items));
  return Py_NewRef(write.made());
}

// Whether each lane of a buffer that stops when it is full has room for what is added; if not, or if that is not known
// here, the reference refuses it.
Found find_room(Turn& turn, const Batch& batch) {
  const RingRecord* ring = turn.known()->rings();
  const Ref counters = attribute(turn.state(), names._counters);
  Seen numbers;
  if (!counters) return Found::FAILED;
  if (turn.on_gpu() || !see_counters(turn, counters, numbers)) return Found::ELSEWHERE;
  const int32_t* sizes = reinterpret_cast<const int32_t*>(numbers.data) + ring->sizes;
  for (int64_t lane = 0; lane < ring->lanes; ++lane) {
    int64_t wanted = 0;
    for (int64_t row = lane; row < batch.rows; row += ring->lanes) wanted += !batch.mask || batch.mask[row];
    if (sizes[lane] < 0 || wanted > int64_t(ring->length) - sizes[lane]) return Found::ELSEWHERE;
  }
  return Found::READY;
}

// Whether nobody has to keep what lies in slots that the kernel alone will know: of files that a checkpoint needs the recorder does.
Found find_choice(const Turn& turn) {
  const Ref files = turn.known()->rings()->chooses ? attribute(turn.memory.get(), names.files) : Ref::to(Py_None);
  const Ref undo = !files || files.is(Py_None) ? Ref::to(files.get()) : attribute(files.get(), names.undo);
  return !undo ? Found::FAILED : undo.is(Py_None) ? Found::READY : Found::ELSEWHERE;
}

// Add a batch whose leaves have been taken. On a GPU the kernel refuses what a full buffer has no room for, as the reference
// does, of which the engine has told the user.
template <bool IN_PLACE>
PyObject* added(Turn& turn, Batch& batch, PyObject* mask, PyObject* priorities, PyObject* key, bool checked) {
  const KnownBuffer* known = turn.known();
  Draw draw;
  if (batch.rows <= 0 || !countable(known, batch.rows)) return not_here();
  if (!batch.take_mask(mask) || !batch.take_priorities(priorities)) return not_here();
  if (known->chosen_by ? !draw.random.take(turn.chain(), turn.place()->where, key, batch.rows, known->chosen_by)
                       : key != Py_None && !checked)  // what a key has to be the reference says
    return not_here();
  const RingRecord* ring = known->writes ? nullptr : known->rings();
  const int64_t lanes = ring ? ring->lanes : 1;
  if (batch.rows % lanes || (known->waits() && batch.priorities)) return not_here();
  if (known->stops && !(checked && turn.on_gpu())) FRB_TRY(find_room(turn, batch));
  FRB_TRY(find_choice(turn));
  Write write(turn, IN_PLACE, batch.rows);
  FRB_TRY(write.check_owner());
  const Place* place = turn.place();
  const int64_t steps_each = batch.rows / lanes;
  const int64_t n = least<int64_t>(batch.rows + known->waiting(), known->plan()->capacity);
  const int64_t shown = ring && ring->window_length ? 3 * n + lanes : 0, lost = known->most_lost(steps_each), more = shown + lost;
  const int64_t each_time = known->chain() && turn.on_gpu() ? 2 : 1;  // as items come, and as others lose their frames
  const int64_t moves = place->beside<int32_t>(ORDER) ? each_time * (5 * ((shown ? shown : n) + lost) + lanes) : 0;
  const bool steps = ring && ring->next;
  FRB_TRY(write.prepare({n, more, moves, true, place->tree != nullptr, place->beside<float>(KEPT) != nullptr, steps,
                         place->beside<int32_t>(TIMES) != nullptr, place->beside<int32_t>(CURRENT) != nullptr,
                         known->most_beside(steps_each)}));
  return written(turn, write, batch, draw, ring ? turn.kernels().add_to_rings : turn.kernels().add);
}

// add(state, items, mask, priorities, key, validate, time_major, to)
template <bool IN_PLACE> PyObject* add(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 8 || args[5] != Py_False || args[6] != Py_True || args[7] != Py_None) return not_here();
  if (is_shared(self, args[0])) return args[4] == Py_None ? add_to_shared(reinterpret_cast<VersionChain*>(self), args) : not_here();
  Turn turn(reinterpret_cast<VersionChain*>(self), args[0]);
  FRB_TRY(turn.begin());
  if (!turn.known()->adds) return not_here();
  Batch batch(turn.known(), turn.chain()->arrays, turn.place()->where, turn.known()->lanes);
  FRB_TRY(take_items(turn, args[1], batch));
  return added<IN_PLACE>(turn, batch, args[2], args[3], args[4], false);
}

// write(state, leaves, mask, priorities, rows, key or random bits): `add` of what the engine has checked, leaves in the order in which they are
// stored, each with so many rows: items may have no leaves, as those of the index of a sharded buffer
template <bool IN_PLACE> PyObject* write(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 6 || !PyList_Check(args[1])) return not_here();
  Turn turn(reinterpret_cast<VersionChain*>(self), args[0]);
  FRB_TRY(turn.begin());
  if (!turn.known()->writes && !turn.known()->appends) return not_here();
  Batch batch(turn.known(), turn.chain()->arrays, turn.place()->where);
  FRB_TRY(take_leaves(turn.known(), args[1], batch));
  if (turn.known()->leaves.empty()) batch.rows = PyLong_AsLongLong(args[4]);
  return added<IN_PLACE>(turn, batch, args[2], args[3], args[5], true);
}

// update(state, indices, priorities, items); the engine gives the items as a list.
template <bool IN_PLACE> PyObject* update(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 4) return not_here();
  const bool rewrites = args[3] != Py_None, values = args[2] != Py_None, counts_alone = !rewrites && !values;
  if (is_shared(self, args[0])) return counts_alone ? not_here() : update_shared(reinterpret_cast<VersionChain*>(self), args);
  Turn turn(reinterpret_cast<VersionChain*>(self), args[0]);
  FRB_TRY(turn.begin());
  const bool whole = turn.known()->writes;
  if (!whole && ((counts_alone && !turn.known()->appends) || (rewrites && turn.on_gpu()) || (values && !turn.known()->updates))) return not_here();
  Batch batch(turn.known(), turn.chain()->arrays, turn.place()->where);
  if (!batch.take_handles(args[1]) || batch.rows <= 0 || !batch.take_priorities(args[2])) return not_here();
  FRB_TRY(take_replacements(turn.known(), args[3], batch));
  Write write(turn, IN_PLACE, rewrites ? batch.rows : 0, args[1]);
  FRB_TRY(write.check_owner());
  FRB_TRY(write.prepare({batch.rows, 0, 0, rewrites, values, values && turn.place()->beside<float>(KEPT), false, false, false, 0}));
  return written(turn, write, batch, {}, whole ? turn.kernels().update : turn.kernels().update_priorities);
}
// --- draws ----------------------------------------------------------------------------------------------------------

constexpr int64_t SHARE = 1 << 23, MOST_THREADS = 8;  // bytes that are worth a thread, and how many there are

int64_t threads_for(int64_t bytes) {
  const unsigned processors = FRB_FAULT(FEW_THREADS) ? 4 : std::thread::hardware_concurrency();
  return std::min({bytes / SHARE, int64_t(processors), MOST_THREADS});
}

// Some draws of a call, from the first on.
struct SomeDraws {
  BufferCall call;
  int64_t items[MOST_LEAVES];

  SomeDraws(const BufferCall& all, const KnownBuffer& known, int64_t first, int64_t count) : call(all) {
    const int64_t rows = first * known.length;
    const std::vector<Leaf>& leaves = known.leaves_drawn(all.frames);
    for (int64_t k = 0; k < all.given; ++k) items[k] = all.items[k] + rows * leaves[size_t(k)].bytes;
    call.items = items, call.batch = count, call.draws += first * all.words;
    call.handles += rows, call.weights += first, call.probabilities += first;
    if (all.slots) call.slots += rows;
    for (uint8_t** mask : {&call.drawn, &call.is_first, &call.is_last, &call.truncated})
      if (*mask) *mask += rows;
  }
};

// Have several threads draw, by random bits; what one of them has drawn is there.
int shared_out(int (*kernel)(const BufferCall&), const BufferCall& call, const KnownBuffer& known, int64_t threads) {
  int outcomes[MOST_THREADS];
  std::fill_n(outcomes, threads, NONE_DRAWN);
  std::vector<std::thread> others;
  auto carry_out = [&](int64_t k) {
    const int64_t first = call.batch * k / threads, end = call.batch * (k + 1) / threads;
    if (first < end) outcomes[k] = kernel(SomeDraws(call, known, first, end - first).call);
  };
  int64_t alone = 1;  // the first share, and those that no thread could be had for
  try {
    others.reserve(size_t(threads));
    for (int64_t k = threads - 1; k > 0; --k) {
      if (FRB_FAULT(FEW_THREADS) && !others.empty()) throw std::system_error(EAGAIN, std::generic_category());
      others.emplace_back(carry_out, k);
    }
  } catch (const std::exception&) {
    alone = threads - int64_t(others.size());
  }
  for (int64_t k = 0; k < alone; ++k) carry_out(k);
  for (std::thread& other : others) other.join();
  const auto has = [&](int outcome) { return std::find(outcomes, outcomes + threads, outcome) != outcomes + threads; };
  return has(NO_MEMORY) ? NO_MEMORY : has(DONE) ? DONE : NONE_DRAWN;
}

// Draw what leaves a state as it is. Of a large batch the lineage's lock is let go of.
Found draw_rows(Turn& turn, const Draw& draw, Drawn& drawn) {
  const Ref counters = attribute(turn.state(), names._counters);
  if (!counters) return Found::FAILED;
  Seen numbers;
  if (!see_counters(turn, counters, numbers)) return Found::ELSEWHERE;
  BufferCall call = drawn.described(turn, numbers);
  draw.tell(call);
  const auto kernel = turn.kernels().draw;
  const int64_t rows = draw.draws * turn.known()->length;
  if (turn.on_gpu()) return told(kernel(call)) == DONE ? Found::READY : Found::FAILED;
  const Reading reading(turn.place());
  const bool large = is_large_draw(call, rows);
  if (large) turn.unlock();
  const int64_t threads = drawn.is_given() && call.draws && turn.known()->draws <= SLICES ? threads_for(rows * call.row_bytes) : 1;
  const int outcome = threads > 1 ? apart_if(true, [&] { return shared_out(kernel, call, *turn.known(), threads); })
                                  : run(kernel, call, large);
  if (outcome == NO_MEMORY) return drawn.no_room(), Found::FAILED;
  return outcome == DONE ? Found::READY : Found::ELSEWHERE;
}

// What was drawn is handed on by `finish`, with the state afterwards.
template <class Finish> PyObject* draw_only(Turn& turn, const Draw& draw, Finish finish) {
  if (turn.on_gpu() && !turn.find_stream()) return nullptr;
  Drawn drawn(turn, draw.draws, draw.given, false, draw.frames);
  if (PyErr_Occurred()) return nullptr;  // an interrupt, while given arrays were looked at
  if (!drawn.has_room()) return drawn.no_room();
  FRB_TRY(draw_rows(turn, draw, drawn));
  turn.unlock();  // items may be of a class of the user's
  return finish(drawn, turn.state());
}

// Draw what the state remembers. What tells of it is made before anything is written.
template <class Finish> PyObject* draw_and_keep(Turn& turn, const Draw& draw, bool in_place, Finish finish) {
  Write write(turn, in_place);
  FRB_TRY(write.check_owner());
  const bool counts = turn.known()->plan()->limit;
  const int64_t moves = turn.place()->beside<int32_t>(ORDER) ? 2 * draw.draws : 0;
  FRB_TRY(write.prepare({counts ? draw.draws : 0, 0, moves, false, counts, false, false, counts, false, 0}));
  Drawn drawn(turn, draw.draws, draw.given, false, draw.frames);
  if (PyErr_Occurred()) return nullptr;  // an interrupt, while given arrays were looked at
  if (!drawn.has_room()) return drawn.no_room();
  Ref result(finish(drawn, write.made()));
  if (!result) return nullptr;
  BufferCall call = drawn.described(turn, write.counters());
  draw.tell(call);
  FRB_TRY(write.carry_out(turn.kernels().draw, call, nullptr));
  return result.give();
}

// Whether there is a kernel that draws.
bool draws_here(const Turn& turn) {
  const int32_t what = turn.known()->draws;
  return what != NO_DRAWS && !(what == FRESH_SLICES && turn.on_gpu());
}

// Whether anything may have been added, which is not so either if there is an error.
bool is_written(const Turn& turn) {
  const Ref fullest = attribute(turn.state(), names._fullest);
  return fullest && (fullest.is(Py_None) || PyObject_IsTrue(fullest.get()) == 1);
}

template <class Finish> PyObject* draw_by(Turn& turn, const Draw& draw, bool in_place, Finish finish) {
  if (!is_written(turn)) return not_here();
  return turn.known()->remembers ? draw_and_keep(turn, draw, in_place, finish) : draw_only(turn, draw, finish);
}

// The same value under another name, with the given state consumed.
Ref renamed(Turn& turn) {
  const Ref counters = attribute(turn.state(), names._counters), past = attribute(turn.state(), names._save_history),
            fullest = attribute(turn.state(), names._fullest);
  Ref state;
  if (counters && past && fullest)
    state = new_state(turn, turn.version.get(), counters.get(), past.get(), fullest.get());
  return state && set(turn.state(), names._version, Py_None) ? std::move(state) : Ref();
}

// sample(state, key, batch_size, beta, p)
template <bool IN_PLACE> PyObject* sample(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 5 || args[4] != Py_None) return not_here();
  if (is_shared(self, args[0])) return sample_shared(reinterpret_cast<VersionChain*>(self), args);
  Turn turn(reinterpret_cast<VersionChain*>(self), args[0]);
  FRB_TRY(turn.begin());
  const Ref target = attribute(turn.state(), names._target);
  if (!target) return nullptr;
  const KnownBuffer* known = turn.known();
  const bool remembers = known->remembers;
  Draw draw;
  // What a draw changes is told of before it is carried out, and nobody else may see that: so not by classes of a user's. How full
  // a queue on a GPU is at most the engine keeps account of.
  if (!known->samples || !draws_here(turn) || (known->draws == QUEUE && turn.on_gpu()) || (remembers && known->given.empty()) || (turn.on_gpu() && (!known->extras.empty() || known->chain())) || !target.is(Py_None) ||
      !take_size(known, args[2], &draw.draws) || !take_beta(known, args[3], &draw.beta) ||
      Py_TYPE(args[1]) != turn.chain()->type(TENSOR) || !draw.random.take(turn.chain(), turn.known(), turn.place()->where, args[1], draw.draws))
    return not_here();
  return draw_by(turn, draw, IN_PLACE, [&turn, remembers](Drawn& drawn, PyObject* state_after) -> PyObject* {
    const Ref sample = drawn.as_sample(turn.chain());
    const Ref state = !sample ? Ref() : IN_PLACE && !remembers ? renamed(turn) : Ref::to(state_after);
    return state ? PyTuple_Pack(2, state.get(), sample.get()) : nullptr;
  });
}

// draw(state, key or random bits, size, beta, given, wanted, frames): what `Drawn::as_parts` tells, for the engine. What is given are
// arrays for the leaves, or None; if they fit, they have the rows then, and several threads share what random bits choose.
// Wanted are, on a GPU, the first rows alone, as many as an array says; or None. Frames that items share are read too, or not; of
// returns that are made as items are read they always are.
PyObject* draw(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 7) return not_here();
  Turn turn(reinterpret_cast<VersionChain*>(self), args[0]);
  FRB_TRY(turn.begin());
  Draw draw;
  draw.beta = float(PyFloat_AsDouble(args[3])), draw.given = args[4], draw.frames = args[6] == Py_True;
  if (PyErr_Occurred()) return nullptr;
  if (!draws_here(turn) || !take_size(turn.known(), args[2], &draw.draws) ||
      !draw.random.take(turn.chain(), turn.known(), turn.place()->where, args[1], draw.draws, true))
    return not_here();
  Seen wanted;
  if (args[5] != Py_None) {
    const Where& where = turn.place()->where;
    if (!where.on_gpu || !turn.chain()->arrays.see(args[5], wanted, where) || !(wanted.dtype == INT32) || wanted.ndim) return not_here();
    draw.wanted_at = reinterpret_cast<const int32_t*>(wanted.data);
  }
  return draw_by(turn, draw, false, [&turn](Drawn& drawn, PyObject* state_after) { return drawn.as_parts(turn.chain(), state_after).give(); });
}

// Whether a buffer gives a mixture rows with replacement.
bool gives_rows(Turn& turn) { return turn.known()->draws == ITEMS || turn.known()->draws == SLICES; }

// mixed(states, told, shares, key, beta, size): of buffers of the same items, read as stored, a batch as their mixture gives it,
// see `gpu_mixtures.h`, as `draw` tells it. Told are a `MixtureRecord` and behind it shares, unless an array on the GPU has these;
// beta may be an array there too.
PyObject* mixed(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 6 || !PyTuple_Check(args[0]) || PyTuple_Size(args[0]) > gpu::MOST_MIXED) return not_here();
  VersionChain* chain = reinterpret_cast<VersionChain*>(self);
  const size_t buffers = size_t(PyTuple_Size(args[0]));
  std::vector<std::pair<PyObject*, size_t>> order;  // of locks, as another mixture may have the same buffers in another one
  for (size_t k = 0; k < buffers; ++k) {
    PyObject* state = PyTuple_GetItem(args[0], Py_ssize_t(k));
    const Ref version = Py_TYPE(state) == chain->type(STATE) ? attribute(state, names._version) : Ref::to(Py_None);
    if (!version || version.is(Py_None)) return version ? not_here() : nullptr;
    const Ref lock = attribute(version.get(), names.lock);
    if (!lock) return nullptr;
    order.push_back({lock.get(), k});
  }
  std::sort(order.begin(), order.end());
  std::deque<std::optional<Turn>> turns(buffers);
  bool any_written = false;
  for (const auto& [lock, k] : order) {
    Turn& turn = turns[k].emplace(chain, PyTuple_GetItem(args[0], Py_ssize_t(k)));
    FRB_TRY(turn.begin());
    if (!gives_rows(turn)) return not_here();
    if (turn.on_gpu() && !turn.find_stream()) return nullptr;
    any_written = any_written || is_written(turn);
  }
  Draw draw;
  Turn& first = *turns[0];
  const Where& where = first.place()->where;
  draw.draws = PyLong_AsLongLong(args[5]);
  Seen beta;
  const bool knows_beta = PyFloat_CheckExact(args[4]);
  if (knows_beta) draw.beta = float(PyFloat_AsDouble(args[4]));
  if (PyErr_Occurred()) return nullptr;
  if (draw.draws < 1 || draw.draws > INT32_MOST) return not_here();
  if (!knows_beta && !(chain->arrays.see(args[4], beta, where) && beta.dtype == FLOAT32 && beta.ndim == 0)) return not_here();
  if (!any_written || !draw.random.take(chain, first.known(), where, args[3], draw.draws)) return not_here();
  char* record;
  Py_ssize_t bytes;
  if (PyBytes_AsStringAndSize(args[1], &record, &bytes)) return nullptr;
  std::vector<int32_t> words(size_t(bytes) / sizeof(int32_t));
  const Mixture mixture = record_of<Mixture>(words.data());
  if (size_t(bytes) != sizeof(MixtureRecord) + buffers * sizeof(float)) return not_here();
  memcpy(words.data(), record, size_t(bytes));
  if (mixture->buffers != int32_t(buffers) || mixture->rows_of_a_part < 1) return not_here();
  Seen shares;
  if (args[2] != Py_None && !(chain->arrays.see(args[2], shares, where) && shares.dtype == FLOAT32 && shares.contiguous() &&
                              shares.ndim == 1 && shares.shape[0] == int64_t(buffers)))
    return not_here();
  Drawn drawn(first, draw.draws, Py_None, true);
  if (!drawn.has_room()) return drawn.no_room();
  std::deque<Ref> held;
  std::deque<Seen> seen;
  std::vector<BufferCall> calls;
  for (std::optional<Turn>& turn : turns) {
    held.push_back(attribute(turn->state(), names._counters));
    if (!held.back()) return nullptr;
    if (!(turn->place()->where == where) || !see_counters(*turn, held.back(), seen.emplace_back())) return not_here();
    calls.push_back(drawn.described(*turn, seen.back()));
    draw.tell(calls.back());
    if (!knows_beta) calls.back().beta_at = reinterpret_cast<const float*>(beta.data);
  }
  const float* array = args[2] == Py_None ? nullptr : reinterpret_cast<const float*>(shares.data);
  const bool large = !where.on_gpu && is_large_draw(calls[0], draw.draws * first.known()->length);
  std::deque<Reading> readings;
  for (std::optional<Turn>& turn : turns) {
    readings.emplace_back(turn->place());
    if (large) turn->unlock();
  }
  const auto kernel = first.kernels().sample_mixture;
  const int outcome = told(apart_if(large, [&] { return kernel(words.data(), array, calls.data()); }));
  if (outcome == NO_MEMORY) return drawn.no_room();
  if (outcome != DONE) return outcome < 0 ? nullptr : not_here();
  return drawn.as_parts(chain, Py_None).give();
}

// place(known, storage, tree, beside): see `made_place`.
PyObject* place(PyObject* self, PyObject* args) {
  return made_place(reinterpret_cast<VersionChain*>(self)->arrays, args);
}

// call(handler, records, operands, results): a kernel on the library's arrays, see `calls.h`.
PyObject* call(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  const VersionChain* chain = reinterpret_cast<VersionChain*>(self);
  return call_kernel(chain->arrays, chain->given[READY], args, count);
}

// --- the type -------------------------------------------------------------------------------------------------------

// Chain(*given, has_exchange): what `Given` names, and whether torch's exchange API may be used. Of NumPy's states the
// array class is NumPy's own.
PyObject* new_chain(PyTypeObject* type, PyObject* args, PyObject*) {
  if (PyTuple_Size(args) != GIVEN + 1) {
    PyErr_Format(PyExc_TypeError, "expected %d arguments, got %zd", int(GIVEN) + 1, PyTuple_Size(args));
    return nullptr;
  }
  VersionChain* chain = allocated<VersionChain>(type);
  if (!chain) return nullptr;
  for (int k = 0; k < GIVEN; ++k) chain->given[k] = Py_NewRef(PyTuple_GetItem(args, k));
  new (&chain->arrays) ArrayLibrary();
  chain->on = true, chain->is_numpy = chain->given[TENSOR] == chain->given[NDARRAY];
  PyObject** given = chain->given;
  if (!chain->arrays.begin(given[TENSOR], given[NDARRAY], given[LOOK], given[FROM_CAPSULE], given[IS_NEG], given[IS_CONJ]))
    Py_CLEAR(chain);
  if (chain && !PyObject_IsTrue(PyTuple_GetItem(args, GIVEN))) chain->arrays.forget_exchange();
  return reinterpret_cast<PyObject*>(chain);
}
int visit_chain(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  for (PyObject* each : reinterpret_cast<VersionChain*>(self)->given) Py_VISIT(each);
  return 0;
}
int clear_chain(PyObject* self) {
  for (PyObject*& each : reinterpret_cast<VersionChain*>(self)->given) Py_CLEAR(each);
  return 0;
}
void free_chain(PyObject* self) {
  PyObject_GC_UnTrack(self);
  clear_chain(self);
  released(self);
}

// turn(on): whether kernels do the work.
PyObject* turn(PyObject* self, PyObject* on) {
  reinterpret_cast<VersionChain*>(self)->on = PyObject_IsTrue(on) == 1;
  Py_RETURN_NONE;
}

#define FRB_FAST(name, function) \
  {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function)), METH_FASTCALL, nullptr}
PyMethodDef methods[] = {FRB_FAST("add", add<false>), FRB_FAST("add_", add<true>), FRB_FAST("update", update<false>),
                         FRB_FAST("update_", update<true>), FRB_FAST("write", write<false>), FRB_FAST("write_", write<true>),
                         FRB_FAST("sample", sample<false>), FRB_FAST("sample_", sample<true>), FRB_FAST("draw", draw),
                         FRB_FAST("mixed", mixed), FRB_FAST("call", call),
                         {"place", place, METH_VARARGS, nullptr},
                         {"turn", turn, METH_O, nullptr}, {}};
PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_chain)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(free_chain)},
                       {Py_tp_traverse, reinterpret_cast<void*>(visit_chain)},
                       {Py_tp_clear, reinterpret_cast<void*>(clear_chain)},
                       {Py_tp_methods, methods},
                       {0, nullptr}};
PyType_Spec spec = {"functional_rb._native.Chain", sizeof(VersionChain), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

}  // namespace

bool add_chain(PyObject* module, const BufferKernels& of) {
  kernels = of;
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++generation; });
  return registered == 0 && names.intern() && add_lineage_types(module) && add_shared_types(module) && made_type(module, "Chain", spec);
}

}  // namespace frb
