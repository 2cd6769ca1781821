// A device of torch's private kind whose memory the host may not touch, for tests without an accelerator.
//
// Its memory is a range of the process's own addresses that is protected whenever no operation works on it: who reads a
// tensor of it as the host's ends with a segmentation fault, as with an accelerator. An operation opens the pieces that
// its tensors have, is carried out by torch's own functions for the CPU on the same bytes, and closes them. Like CUDA the device refuses
// tensors that lie elsewhere, but for numbers; and what would have the host wait for a device is counted, as are the
// streams that work was given to.
//
// Work is done when it is asked for, whatever its stream. So that a missing wait is seen nevertheless, each stream and
// event has a vector clock: memory that two streams work on, one of them writing, without an order between them is
// counted, and so is memory that is let go before a stream has read it of which its own stream knows nothing.

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {

constexpr auto KIND = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex DEVICES = 2;
constexpr size_t RANGE = size_t{64} << 30, PAGE = 4096, FILLED = size_t{1} << 20;
constexpr int GARBAGE = 0xA5;  // what memory holds that nobody wrote to

enum Count { WAITS, OPERATIONS, RECORDED, BLOCKED, PINNED, SENT, BYTES, ASIDE, RACES, LOST, COUNTS };
std::atomic<int64_t> counted[COUNTS];

// How much of each stream's work is known to be done, by the stream's device and number.
using StreamName = std::pair<c10::DeviceIndex, c10::StreamId>;
using Clock = std::map<StreamName, int64_t>;

bool knows(const Clock& clock, const std::pair<const StreamName, int64_t>& work) {
    const auto found = clock.find(work.first);
    return found != clock.end() && found->second >= work.second;
}

void learn(Clock& clock, const Clock& other) {
    for (const auto& [stream, done] : other) clock[stream] = std::max(clock[stream], done);
}

// A piece of memory, a row of whole pages: how many operations have it open, whether a tensor has it, and whose work.
struct Piece {
    size_t bytes;
    c10::DeviceIndex device;
    StreamName own;             // the stream that it was made for
    int opened = 0;
    bool taken = true;
    Clock used, written;        // the last work of each stream on it
    std::set<StreamName> kept;  // for these it is kept when it is let go
};

struct Memory {
    char* begin = static_cast<char*>(mmap(nullptr, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    size_t used = 0;
    std::multimap<size_t, char*> spare;
    std::map<char*, Piece> pieces;
    std::map<StreamName, Clock> known;  // of each stream: what was done before what comes next
    Clock on_host;                      // what the host has waited for
    std::mutex mutex;

    bool has(const void* address) const { return address >= begin && address < begin + RANGE; }

    static void protect(char* at, const Piece& piece, int how) {
        TORCH_CHECK(mprotect(at, piece.bytes, how) == 0, "mprotect: ", std::strerror(errno));
    }

    void open(const std::vector<char*>& all) {
        const std::lock_guard<std::mutex> held(mutex);
        for (char* at : all) {
            if (pieces.at(at).opened++ == 0) protect(at, pieces.at(at), PROT_READ | PROT_WRITE);
        }
    }

    void close(const std::vector<char*>& all) {
        const std::lock_guard<std::mutex> held(mutex);
        for (char* at : all) {
            if (--pieces.at(at).opened == 0) protect(at, pieces.at(at), PROT_NONE);
        }
    }

    std::vector<char*> everything() {
        const std::lock_guard<std::mutex> held(mutex);
        std::vector<char*> all;
        for (const auto& [at, piece] : pieces) {
            if (piece.taken) all.push_back(at);
        }
        return all;
    }

    Clock& now(StreamName stream) {
        learn(known[stream], on_host);
        return known[stream];
    }

    // Some work of a stream on pieces of memory, of which it writes some.
    void work(StreamName stream, const std::vector<std::pair<char*, bool>>& all) {
        const std::lock_guard<std::mutex> held(mutex);
        Clock& clock = now(stream);
        bool in_order = true;
        for (const auto& [at, writes] : all) {
            const Piece& piece = pieces.at(at);
            for (const auto& done : writes ? piece.used : piece.written) in_order = in_order && knows(clock, done);
        }
        if (!in_order) ++counted[RACES];
        const int64_t tick = ++clock[stream];
        for (const auto& [at, writes] : all) {
            pieces.at(at).used[stream] = tick;
            if (writes) pieces.at(at).written[stream] = tick;
        }
    }

    Clock done(StreamName stream) {
        const std::lock_guard<std::mutex> held(mutex);
        return now(stream);
    }
    void wait(StreamName stream, const Clock& for_these) {
        const std::lock_guard<std::mutex> held(mutex);
        learn(known[stream], for_these);
    }
    void wait_on_host(const Clock& for_these) {
        const std::lock_guard<std::mutex> held(mutex);
        learn(on_host, for_these);
    }
    Clock everything_done() {
        const std::lock_guard<std::mutex> held(mutex);
        Clock all;
        for (const auto& [stream, clock] : known) learn(all, clock);
        return all;
    }
    void keep(char* at, StreamName stream) {
        const std::lock_guard<std::mutex> held(mutex);
        pieces.at(at).kept.insert(stream);
    }

    char* take(size_t bytes, StreamName own) {
        const std::lock_guard<std::mutex> held(mutex);
        const size_t size = (bytes + PAGE - 1) / PAGE * PAGE;
        char* at = begin + used;
        if (const auto found = spare.find(size); found != spare.end()) {
            at = found->second;
            spare.erase(found);
        } else {
            TORCH_CHECK(used + size + PAGE <= RANGE, "the emulated device is out of memory");
            used += size + PAGE;  // a page between two pieces is never open: who runs over the end is stopped
        }
        pieces[at] = {size, own.first, own};
        protect(at, pieces[at], PROT_READ | PROT_WRITE);
        std::memset(at, GARBAGE, std::min(size, FILLED));
        protect(at, pieces[at], PROT_NONE);
        return at;
    }

    void give(void* at) {
        const std::lock_guard<std::mutex> held(mutex);
        Piece& piece = pieces.at(static_cast<char*>(at));
        piece.taken = false;
        const Clock& known_there = now(piece.own);
        for (const auto& work : piece.used) {
            if (!knows(known_there, work) && piece.kept.count(work.first) == 0) {
                ++counted[LOST];
                break;
            }
        }
        if (piece.bytes > FILLED) madvise(at, piece.bytes, MADV_DONTNEED);
        spare.emplace(piece.bytes, static_cast<char*>(at));
    }

    char* piece_of(const void* address) {
        const std::lock_guard<std::mutex> held(mutex);
        const auto after = pieces.upper_bound(static_cast<char*>(const_cast<void*>(address)));
        TORCH_CHECK(after != pieces.begin(), "no memory of the emulated device");
        return std::prev(after)->first;
    }
};

Memory& memory() {
    static auto* all = new Memory;  // which outlives every tensor
    return *all;
}

thread_local c10::DeviceIndex current = 0;
thread_local c10::StreamId streams[DEVICES] = {};
std::atomic<c10::StreamId> newest{0};

StreamName stream_of(c10::DeviceIndex device) { return {device, streams[device]}; }
StreamName stream_of(const c10::Stream& stream) { return {stream.device_index(), stream.id()}; }

// Pieces that are open as long as this lives, for work on the current stream.
struct Open {
    std::vector<char*> all;
    void add(const at::Tensor& x) {
        if (x.defined() && memory().has(x.storage().data())) add(x.storage().data());
    }
    void add(const void* address) {
        char* at = memory().piece_of(address);
        memory().open({at});
        all.push_back(at);
    }
    ~Open() { memory().close(all); }
};

// Work of the current stream on a tensor of the device.
void work_on(const at::Tensor& x, bool writes) {
    if (!x.defined() || x.device().type() != KIND || x.storage().data() == nullptr) return;
    memory().work(stream_of(x.device().index()), {{memory().piece_of(x.storage().data()), writes}});
}

struct Allocator final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        void* piece = bytes == 0 ? nullptr : memory().take(bytes, stream_of(current));
        return {piece, piece, &free, c10::Device(KIND, current)};
    }
    static void free(void* piece) {
        if (piece != nullptr) memory().give(piece);
    }
    c10::DeleterFnPtr raw_deleter() const override { return &free; }
    void copy_data(void* to, const void* from, size_t bytes) const override {
        Open open;
        open.add(to);
        open.add(from);
        std::memcpy(to, from, bytes);
    }
};

Allocator allocator;
REGISTER_ALLOCATOR(KIND, &allocator)

struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return KIND; }
    c10::Device exchangeDevice(c10::Device device) const override {
        const c10::Device before(KIND, current);
        uncheckedSetDevice(device);
        return before;
    }
    c10::Device getDevice() const override { return {KIND, current}; }
    void setDevice(c10::Device device) const override {
        TORCH_CHECK(device.index() < DEVICES, "invalid device ordinal");
        uncheckedSetDevice(device);
    }
    void uncheckedSetDevice(c10::Device device) const noexcept override {
        if (device.index() >= 0) current = device.index();
    }
    c10::DeviceIndex deviceCount() const noexcept override { return DEVICES; }

    static c10::DeviceIndex index_of(c10::Device device) { return device.index() < 0 ? current : device.index(); }
    static c10::Stream stream(c10::Device device, c10::StreamId id) {
        return c10::Stream(c10::Stream::UNSAFE, c10::Device(KIND, index_of(device)), id);
    }
    c10::Stream getStream(c10::Device device) const override { return stream(device, streams[index_of(device)]); }
    c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
    c10::Stream getNewStream(c10::Device device, int) const override { return stream(device, ++newest); }
    c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return stream(device, ++newest); }
    c10::Stream exchangeStream(c10::Stream next) const override {
        const auto before = getStream(next.device());
        streams[index_of(next.device())] = next.id();
        return before;
    }
    void record(void** event, const c10::Stream& of, c10::DeviceIndex, c10::EventFlag) const override {
        ++counted[RECORDED];
        if (*event == nullptr) *event = new Clock;
        *static_cast<Clock*>(*event) = memory().done(stream_of(of));
    }
    void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Clock*>(event); }
    void block(void* event, const c10::Stream& stream) const override {
        ++counted[BLOCKED];
        memory().wait(stream_of(stream), *static_cast<Clock*>(event));
    }
    bool queryEvent(void*) const override { return true; }
    bool queryStream(const c10::Stream&) const override { return true; }
    void synchronizeStream(const c10::Stream& stream) const override {
        ++counted[WAITS];
        memory().wait_on_host(memory().done(stream_of(stream)));
    }
    void synchronizeEvent(void* event) const override {
        ++counted[WAITS];
        memory().wait_on_host(*static_cast<Clock*>(event));
    }
    void synchronizeDevice(c10::DeviceIndex) const override {
        ++counted[WAITS];
        memory().wait_on_host(memory().everything_done());
    }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return DEVICES; }
    c10::DeviceIndex getCurrentDevice() const override { return current; }
    void setCurrentDevice(c10::DeviceIndex device) const override { current = device; }
    c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return std::exchange(current, device); }
    c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
    // Ordinary memory of the host: here nothing copies behind its back.
    at::Allocator* getPinnedMemoryAllocator() const override {
        ++counted[PINNED];
        return c10::GetAllocator(c10::DeviceType::CPU);
    }
    at::Device getDeviceFromPtr(void* data) const override {
        return {KIND, memory().pieces.at(memory().piece_of(data)).device};
    }
    void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
        const c10::DeviceIndex before = std::exchange(current, storage.device().index());
        auto larger = allocator.allocate(bytes);
        current = before;
        Open open;
        if (bytes > 0 && storage.nbytes() > 0) {
            open.add(larger.get());
            open.add(storage.data());
            std::memcpy(larger.get(), storage.data(), std::min(bytes, storage.nbytes()));
        }
        storage.set_data_ptr_noswap(std::move(larger));
        storage.set_nbytes(bytes);
    }
};

bool is_here(const at::Tensor& x) { return x.defined() && x.device().type() == KIND; }

at::Tensor empty(c10::IntArrayRef sizes, at::ScalarType dtype, c10::Device device) {
    const c10::DeviceIndex before = std::exchange(current, device.index() < 0 ? current : device.index());
    at::Tensor made = at::detail::empty_generic(sizes, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype, std::nullopt);
    current = before;
    return made;
}

// A tensor of other sizes and strides in the memory of another.
at::Tensor view_of(const at::Tensor& whole, const at::Tensor& seen) {
    auto made = at::detail::make_tensor<c10::TensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(whole.storage()), whole.key_set(), seen.dtype());
    const auto offset = static_cast<char*>(seen.data_ptr()) - static_cast<const char*>(whole.storage().data());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(seen.sizes(), seen.strides(), offset / seen.element_size());
    return made;
}

// The same bytes as the CPU's.
at::Tensor on_cpu(const at::Tensor& x) {
    if (!is_here(x)) return x;
    const auto options = at::TensorOptions().dtype(x.dtype()).device(at::kCPU);
    const auto elements = static_cast<int64_t>(x.storage().nbytes() / x.element_size());
    at::Tensor seen = elements == 0 ? at::empty({0}, options) : at::from_blob(x.storage().mutable_data(), {elements}, options);
    seen.unsafeGetTensorImpl()->set_sizes_and_strides(x.sizes(), x.strides(), x.storage_offset());
    if (x.is_conj()) seen._set_conj(true);
    if (x.is_neg()) seen._set_neg(true);
    return seen;
}

// One call of an operation: its tensors here, and what stands for them on the CPU.
struct Call {
    const c10::FunctionSchema& schema;
    std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
    std::optional<c10::Device> device;
    Open open;

    bool takes_others() const {  // as on CUDA, where the host may index
        static const std::set<std::string> known{"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"};
        return known.count(schema.name()) > 0;
    }

    at::Tensor cpu(const at::Tensor& x) {
        if (!is_here(x)) {
            TORCH_CHECK(!x.defined() || x.dim() == 0 || takes_others(), schema.name(),
                        ": Expected all tensors to be on the same device, but found one on ", x.device());
            return x;
        }
        TORCH_CHECK(!device || *device == x.device(), schema.name(),
                    ": Expected all tensors to be on the same device, but found ", *device, " and ", x.device());
        device = x.device();
        open.add(x);
        pairs.emplace_back(x, on_cpu(x));
        return pairs.back().second;
    }

    c10::IValue cpu(const c10::IValue& value) {
        if (value.isTensor()) return cpu(value.toTensor());
        if (value.isTensorList()) {
            c10::List<at::Tensor> seen;
            for (const at::Tensor& x : value.toTensorVector()) seen.push_back(cpu(x));
            return seen;
        }
        if (value.isOptionalTensorList()) {
            c10::List<std::optional<at::Tensor>> seen;
            for (const std::optional<at::Tensor>& x : value.toOptionalTensorList()) {
                seen.push_back(x ? std::optional(cpu(*x)) : std::nullopt);
            }
            return seen;
        }
        if (value.isDevice() && value.toDevice().type() == KIND) {
            device = value.toDevice();
            return c10::Device(at::kCPU);
        }
        return value;
    }

    // What the CPU gave, as tensors of the device: those that were given, views of them, or copies.
    at::Tensor here(const at::Tensor& found) {
        if (!found.defined()) return found;
        for (const auto& [given, seen] : pairs) {
            if (found.is_same(seen)) return given;
        }
        for (const auto& [given, seen] : pairs) {
            const auto* begin = static_cast<const char*>(given.storage().data());
            const auto* data = static_cast<const char*>(found.data_ptr());
            if (memory().has(data) && data >= begin && data < begin + given.storage().nbytes()) return view_of(given, found);
        }
        const auto at = device.value_or(c10::Device(KIND, current));
        at::Tensor made = empty({static_cast<int64_t>(found.storage().nbytes() / found.element_size())}, found.scalar_type(), at);
        open.add(made);
        work_on(made, true);
        if (made.nbytes() > 0) std::memcpy(made.data_ptr(), found.storage().data(), made.nbytes());
        made.unsafeGetTensorImpl()->set_sizes_and_strides(found.sizes(), found.strides(), found.storage_offset());
        return made;
    }

    c10::IValue here(const c10::IValue& value) {
        if (value.isTensor()) return here(value.toTensor());
        if (!value.isTensorList()) return value;
        c10::List<at::Tensor> made;
        for (const at::Tensor& x : value.toTensorVector()) made.push_back(here(x));
        return made;
    }

    // Outputs that the CPU has given another size have other memory there.
    void follow_sizes() {
        for (auto& [given, seen] : pairs) {
            if (given.sizes() == seen.sizes()) continue;
            given.resize_(seen.sizes());
            open.add(given);
            on_cpu(given).copy_(seen);
        }
    }
};

const std::set<std::string> WAITING{"aten::nonzero", "aten::_local_scalar_dense", "aten::equal", "aten::masked_select",
                                    "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::is_nonzero",
                                    "aten::repeat_interleave"};

// Whether an operation gives a view, for which nothing is read.
bool is_view(const c10::FunctionSchema& schema) {
    const auto& made = schema.returns();
    return !made.empty() && made[0].alias_info() != nullptr && !made[0].alias_info()->isWrite();
}

void work_on(const c10::IValue& value, bool writes) {
    if (value.isTensor()) work_on(value.toTensor(), writes);
    if (value.isTensorList())
        for (const at::Tensor& x : value.toTensorVector()) work_on(x, writes);
    if (value.isOptionalTensorList())
        for (const std::optional<at::Tensor>& x : value.toOptionalTensorList())
            if (x) work_on(*x, writes);
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    ++counted[OPERATIONS];
    Call call{op.schema(), {}, {}, {}};
    const size_t taken = op.schema().arguments().size();
    const auto first = stack->end() - static_cast<std::ptrdiff_t>(taken);
    for (size_t k = 0; k < taken && !is_view(op.schema()); ++k) {
        const auto* alias = op.schema().arguments()[k].alias_info();
        work_on(first[static_cast<std::ptrdiff_t>(k)], alias != nullptr && alias->isWrite());
    }
    for (auto value = first; value != stack->end(); ++value) *value = call.cpu(*value);
    if (WAITING.count(op.schema().name()) > 0) {
        ++counted[WAITS];
        if (call.device) memory().wait_on_host(memory().done(stream_of(call.device->index())));
    }
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    call.follow_sizes();
    const auto made = stack->end() - static_cast<std::ptrdiff_t>(op.schema().returns().size());
    for (auto value = made; value != stack->end(); ++value) *value = call.here(*value);
}

at::Tensor empty_of(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat>) {
    return empty(sizes, c10::dtype_or_default(dtype), c10::device_or_default(device));
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
    const auto type = c10::dtype_or_default(dtype);
    const auto bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(type));
    at::Tensor made = empty({static_cast<int64_t>(bytes / c10::elementSize(type))}, type, c10::device_or_default(device));
    made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
    return made;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
    Open open;
    open.add(from);
    open.add(to);
    ++counted[OPERATIONS];
    work_on(from, false);
    work_on(to, true);
    if (!is_here(to) && !non_blocking) {
        ++counted[WAITS];
        memory().wait_on_host(memory().done(stream_of(from.device().index())));
    }
    if (!is_here(from)) {
        ++counted[SENT];
        counted[BYTES] += static_cast<int64_t>(to.nbytes());
        if (streams[to.device().index()] != 0) ++counted[ASIDE];
    }
    on_cpu(to).copy_(on_cpu(from));
    return to;
}

const at::Tensor& resize(const at::Tensor& x, c10::IntArrayRef sizes, std::optional<at::MemoryFormat>) {
    const auto bytes = at::detail::computeStorageNbytesContiguous(sizes, x.element_size(), x.storage_offset());
    if (bytes > x.storage().nbytes()) at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(x.storage(), bytes);
    x.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
    return x;
}

at::Tensor& set_storage(at::Tensor& x, at::Storage storage, int64_t offset, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
    x.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
    if (strides.empty() && !sizes.empty()) {
        x.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
        x.unsafeGetTensorImpl()->set_storage_offset(offset);
    } else {
        x.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
    }
    return x;
}

at::Tensor& set_whole_storage(at::Tensor& x, at::Storage storage) {
    const auto elements = static_cast<int64_t>(storage.nbytes() / x.element_size());
    return set_storage(x, std::move(storage), 0, {elements}, {});
}

at::Tensor& set_tensor(at::Tensor& x, const at::Tensor& source) {
    return set_storage(x, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

void record_stream(at::Tensor& x, at::Stream stream) {
    if (x.storage().data() != nullptr) memory().keep(memory().piece_of(x.storage().data()), stream_of(stream));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("empty.memory_format", empty_of);
    m.impl("empty_strided", empty_strided);
    m.impl("_copy_from", copy_from);
    m.impl("resize_", resize);
    m.impl("set_.source_Storage", set_whole_storage);
    m.impl("set_.source_Storage_storage_offset", set_storage);
    m.impl("set_.source_Tensor", set_tensor);
    m.impl("record_stream", record_stream);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace

extern "C" {

void device_begin() {
    static Hooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
}

void device_counts(int64_t* found) {
    for (int k = 0; k < COUNTS; ++k) found[k] = counted[k];
}


// Has an emulated kernel, and it alone, work on the memory: with the signature of cuLaunchKernel, as is what it calls.
using Launch = int(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
// What it works on is found in its record, of so many bytes, and counts as written.
static Launch* emulated = nullptr;
static size_t record_bytes = 0;
void device_launches_by(Launch* launch, int64_t bytes) { emulated = launch, record_bytes = static_cast<size_t>(bytes); }
int device_launch(void* kernel, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned more, unsigned most,
                  unsigned shared, void* stream, void** arguments, void** rest) {
    Open open;
    for (char* at : memory().everything()) open.add(at);
    std::set<char*> found;
    for (size_t k = 0; k + sizeof(char*) <= record_bytes; k += sizeof(char*)) {
        char* address;
        std::memcpy(&address, static_cast<char*>(arguments[0]) + k, sizeof address);
        if (memory().has(address)) found.insert(memory().piece_of(address));
    }
    std::vector<std::pair<char*, bool>> works_on;
    for (char* at : found) works_on.emplace_back(at, true);
    const c10::DeviceIndex device = found.empty() ? current : memory().pieces.at(*found.begin()).device;
    memory().work({device, reinterpret_cast<c10::StreamId>(stream)}, works_on);
    return emulated(kernel, x, y, z, threads, more, most, shared, stream, arguments, rest);
}
// As cuCtxGetCurrent: there is one. Where there are contexts there are streams.
int device_context(void** found) { return *found = nullptr, 0; }
int device_current() { return current; }
void device_choose(int device) { current = static_cast<c10::DeviceIndex>(device); }
int device_count() { return DEVICES; }
}
