// CUDA's runtime and driver: device memory is host memory at addresses of its own, copies are
// copies and checked, kernels are looked up and counted; those of device.cu run as FAKECUDA_KERNELS
// has them, Horovod's copies are made, and all others do nothing: MXNet's are machine code of a GPU,
// and count as "kernels not computed". With FAKECUDA_COMPUTE=0 no kernel runs and no call of cuDNN or
// cuBLAS computes.
#include "fake.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include <cuda.h>  // behind C++'s own, whose words it takes
#include <cuda_runtime_api.h>

namespace {

std::mutex lock;  // of everything below

// --- the report ----------------------------------------------------------------------------------
// Never destroyed: the report is written when a process ends.
auto& counts = *new std::map<std::string, long>;
auto& errors = *new std::vector<std::string>;
auto& failing = *new std::set<std::string>;

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += (unsigned char)c < 32 ? ' ' : c;
  }
  return out + '"';
}

// --- device memory: an address range of its own, one page between two allocations ----------------
// Zeros, which take no memory until somebody writes, so that activations of any size cost nothing;
// but where kernels compute, what is no number, as memory that nobody has written may be.
constexpr int kGarbage = 0xFF;
constexpr std::size_t kRange = std::size_t(1) << 42, kPage = 4096, kAlignment = 256;
char* range_begin = nullptr;
char* range_next = nullptr;
auto& blocks = *new std::map<char*, std::size_t>;   // begin -> bytes
std::size_t allocated = 0, peak = 0;

std::size_t memory_bytes() { return std::size_t(fake::setting("FAKECUDA_MEMORY_GIB", 80)) << 30; }

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

void* take(std::size_t bytes) {
  std::lock_guard<std::mutex> hold(lock);
  if (range_begin == nullptr) {
    void* range = mmap(nullptr, kRange, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) return nullptr;
    range_begin = range_next = static_cast<char*>(range);
  }
  if (allocated + bytes > memory_bytes()) return nullptr;
  const std::size_t pages = whole_pages(bytes ? bytes : 1);
  // Addresses are never used again: what is read or written after its end is met with SIGSEGV.
  if (range_next + pages + kPage > range_begin + kRange) return nullptr;
  char* page = range_next;
  range_next += pages + kPage;
  if (mmap(page, pages, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
    return nullptr;
  // It ends where its pages do, but for the alignment that CUDA promises.
  char* begin = page + (pages - bytes) / kAlignment * kAlignment;
  static const bool is_garbage = fake::computes() && fake::setting("FAKECUDA_GARBAGE", 1);
  if (is_garbage) std::memset(begin, kGarbage, bytes);
  blocks[begin] = bytes;
  allocated += bytes;
  if (allocated > peak) peak = allocated;
  return begin;
}

bool give(void* pointer) {
  std::lock_guard<std::mutex> hold(lock);
  auto found = blocks.find(static_cast<char*>(pointer));
  if (found == blocks.end()) return false;
  char* page = found->first - (found->first - range_begin) % kPage;
  mmap(page, whole_pages(found->second ? found->second : 1), PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  allocated -= found->second;
  blocks.erase(found);
  return true;
}

auto& pinned = *new std::map<const char*, std::size_t>;  // host memory: begin -> bytes

// --- contexts: each device's primary one, made when it is first used ---------------------------------
// As the runtime 11.8 has it: cudaSetDevice makes a context the thread's without making it, a call of
// the runtime then does; a thread that set none has device 0's. The driver's calls make none.
struct Context {
  int device;
  bool made;
};
constexpr int kDevices = 64;
Context* context_of(int device) {
  static auto& contexts = *new std::vector<Context>(kDevices);
  contexts[device].device = device;
  return &contexts[device];
}
thread_local Context* current = nullptr;

// What cuLaunchKernel and the like answer in a thread without a context that can be used.
CUresult check_context(const char* name) {
  if (current == nullptr)
    return static_cast<CUresult>(fake::refuse(
        CUDA_ERROR_INVALID_CONTEXT, std::string(name) + " in a thread without a context"));
  if (!current->made)
    return static_cast<CUresult>(fake::refuse(
        CUDA_ERROR_CONTEXT_IS_DESTROYED,
        std::string(name) + " in a thread whose device's context was never made"));
  return CUDA_SUCCESS;
}

// --- kernels: which library brought them, and for which architectures -----------------------------
struct Wrapper {  // what the compiler puts into .nvFatBinSegment
  std::int32_t magic, version;
  const unsigned char* data;
  const void* more;
};
struct Kernel {
  std::string name;
  const Wrapper* image;
};
auto& kernels = *new std::unordered_map<const void*, Kernel>;
auto& loadable = *new std::unordered_map<const Wrapper*, bool>;

template <class T>
T read(const unsigned char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Does the fat binary hold machine code of this major architecture up to this minor, or PTX not
// above it? Header: magic, version (2), header bytes (2), bytes of all entries (8). Entry: kind (2;
// 1 PTX, 2 ELF), version (2), header bytes (4), payload bytes (8), ..., architecture at 28 (4).
bool has_code_for(const Wrapper* image, int major, int minor) {
  const unsigned char* header = image->data;
  if (read<std::uint32_t>(header) != 0xBA55ED50u) return false;
  const unsigned char* entry = header + read<std::uint16_t>(header + 6);
  const unsigned char* end = entry + read<std::uint64_t>(header + 8);
  while (entry < end) {
    const int kind = read<std::uint16_t>(entry), sm = read<std::uint32_t>(entry + 28);
    if (kind == 2 && sm / 10 == major && sm % 10 <= minor) return true;
    if (kind == 1 && sm <= major * 10 + minor) return true;
    const std::size_t step = read<std::uint32_t>(entry + 4) + read<std::uint64_t>(entry + 8);
    if (step == 0) break;
    entry += step;
  }
  return false;
}

constexpr std::size_t kSharedBytes = 49152;  // of a block, without asking for more

struct Module {  // run-time compiled: PTX, as text
  Context* context;
  std::set<std::string> entries;
};
struct Function {
  std::string name;
  Context* context;
};

thread_local struct {
  dim3 grid, block;
  std::size_t shared;
  void* stream;
} pushed;
thread_local cudaError_t last = cudaSuccess;

cudaError_t fail(cudaError_t code, const std::string& what) {
  return static_cast<cudaError_t>(fake::fail(code, what));
}

std::string text_of(const void* pointer) {
  char text[32];
  std::snprintf(text, sizeof text, "%p", pointer);
  return text;
}

// The rules of cudaMemcpy that a mix of contexts, or an end passed by, breaks.
cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                 const char* name, void* stream = nullptr) {
  const bool to_device = fake::in_device_range(to), from_device = fake::in_device_range(from);
  static const char* const kinds[] = {"host to host", "host to device", "device to host",
                                      "device to device"};
  const int found = (from_device ? 2 : 0) + (to_device ? 1 : 0);
  if (kind != cudaMemcpyDefault && found != static_cast<int>(kind))
    return fail(cudaErrorInvalidValue, std::string(name) + ": " + kinds[kind & 3] +
                                           " asked for, memory is " + kinds[found]);
  for (const void* pointer : {static_cast<const void*>(to), from})
    if (bytes && fake::in_device_range(pointer) && !fake::on_device(pointer, bytes))
      return fail(cudaErrorInvalidValue, std::string(name) + ": " + std::to_string(bytes) +
                                             " bytes at " + text_of(pointer) +
                                             " pass the end of an allocation");
  // As CUDA: pageable memory is read before an asynchronous copy returns, and written before it does;
  // but a graph's copies read and write it when they are launched.
  const bool captured = fake::is_captured(stream);
  std::shared_ptr<std::vector<char>> staged;
  const char* source = static_cast<const char*>(from);
  if (fake::lazy() && !captured && !from_device && !fake::is_pinned(from))
    staged = std::make_shared<std::vector<char>>(source, source + bytes);
  fake::Work work{[=] { std::memmove(to, staged ? staged->data() : source, bytes); }};
  work.counts[std::string("copies ") + kinds[found]] = 1;
  work.counts[std::string("bytes ") + kinds[found]] = static_cast<long>(bytes);
  if (to_device) work.memory.emplace_back(to, bytes);
  if (from_device) work.memory.emplace_back(from, bytes);
  if (int bad = fake::enqueue(stream, std::move(work))) return static_cast<cudaError_t>(bad);
  if (!captured && !to_device && !fake::is_pinned(to)) fake::wait(stream);
  return cudaSuccess;
}

cudaError_t check_launch(const std::string& name, dim3 grid, dim3 block, std::size_t shared) {
  const bool fits = grid.x && grid.y && grid.z && block.x && block.y && block.z &&
                    std::uint64_t(block.x) * block.y * block.z <= 1024 && block.x <= 1024 &&
                    block.y <= 1024 && block.z <= 64 && grid.x <= 2147483647u &&
                    grid.y <= 65535 && grid.z <= 65535;
  if (fits && shared <= kSharedBytes) return cudaSuccess;
  return fail(fits ? cudaErrorInvalidValue : cudaErrorInvalidConfiguration,
              name + ": launched as " + std::to_string(grid.x) + "," + std::to_string(grid.y) + "," +
                  std::to_string(grid.z) + " blocks of " + std::to_string(block.x) + "," +
                  std::to_string(block.y) + "," + std::to_string(block.z) + " threads with " +
                  std::to_string(shared) + " bytes of shared memory");
}

// Counts a kernel, and asks the device for what it does.
int launch(const std::string& name, void* stream, std::function<void()> run) {
  fake::count_call(stream, "launches");
  fake::Work work{std::move(run), {{"kernel " + name, 1}, {"kernels", 1}}};
  return fake::enqueue(stream, std::move(work));
}

// A kernel of device.cu, by the library FAKECUDA_KERNELS: its arguments by value, the engine's after
// them left out. Each takes a word of eight bytes at most.
std::function<void()> own_kernel(const std::string& name, unsigned blocks, unsigned threads,
                                 void** arguments) {
  static const char* const path = std::getenv("FAKECUDA_KERNELS");
  static void* const library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (library == nullptr || !fake::computes()) return nullptr;
  auto kernel = reinterpret_cast<void (*)(int, int, void**)>(dlsym(library, ("run_" + name).c_str()));
  auto count = static_cast<const int*>(dlsym(library, ("parameters_" + name).c_str()));
  if (kernel == nullptr || count == nullptr) return nullptr;
  std::vector<std::uint64_t> values(*count);
  for (int n = 0; n < *count; ++n) std::memcpy(&values[n], arguments[n], sizeof values[n]);
  return [=]() mutable {
    static std::mutex one;  // emulated.h keeps a launch's shape in one place
    std::lock_guard<std::mutex> hold(one);
    std::vector<void*> places;
    for (std::uint64_t& value : values) places.push_back(&value);
    kernel(int(blocks), int(threads), places.data());
    fake::count("kernels of our own that ran");
  };
}

}  // namespace

namespace fake {

void count(const std::string& name, long amount) {
  std::lock_guard<std::mutex> hold(lock);
  counts[name] += amount;
}

int refuse(int code, const std::string& what) {
  std::fprintf(stderr, "fakecuda: %s\n", what.c_str());
  std::lock_guard<std::mutex> hold(lock);
  if (errors.size() < 100) errors.push_back(what);
  return code;
}

int fail(int code, const std::string& what) {
  set_last(code);
  return refuse(code, what);
}

bool fails(const std::string& name) {
  std::lock_guard<std::mutex> hold(lock);
  return failing.erase(name) > 0;
}

void set_last(int code) { last = static_cast<cudaError_t>(code); }

bool computes() {
  static const bool is = setting("FAKECUDA_COMPUTE", 1);
  return is;
}

int current_device() {
  if (current == nullptr) current = context_of(0);
  current->made = true;
  return current->device;
}

bool is_pinned(const void* pointer) {
  std::lock_guard<std::mutex> hold(lock);
  const char* place = static_cast<const char*>(pointer);
  auto after = pinned.upper_bound(place);
  return after != pinned.begin() && place < std::prev(after)->first + std::prev(after)->second;
}

bool in_device_range(const void* pointer) {
  const char* place = static_cast<const char*>(pointer);
  return range_begin != nullptr && place >= range_begin && place < range_begin + kRange;
}

bool on_device(const void* pointer, std::size_t bytes) {
  std::lock_guard<std::mutex> hold(lock);
  char* place = static_cast<char*>(const_cast<void*>(pointer));
  auto after = blocks.upper_bound(place);
  if (after == blocks.begin()) return false;
  auto block = std::prev(after);
  return place + bytes <= block->first + block->second;
}

long setting(const char* name, long otherwise) {
  const char* value = std::getenv(name);
  return value ? std::atol(value) : otherwise;
}

void capability(int* major, int* minor) {
  const char* value = std::getenv("FAKECUDA_CAPABILITY");
  if (value == nullptr || std::sscanf(value, "%d.%d", major, minor) != 2) *major = 8, *minor = 0;
}

}  // namespace fake

FAKE void fakecuda_fail_next(const char* name) {
  std::lock_guard<std::mutex> hold(lock);
  failing.insert(name);
}

// What happened so far, as JSON; the text lives until the next call.
FAKE const char* fakecuda_report() {
  static auto& text = *new std::string;
  std::lock_guard<std::mutex> hold(lock);
  text = "{\"counts\": {";
  const char* comma = "";
  for (const auto& [name, amount] : counts) {
    text += comma + quoted(name) + ": " + std::to_string(amount);
    comma = ", ";
  }
  text += "}, \"errors\": [";
  comma = "";
  for (const auto& error : errors) {
    text += comma + quoted(error);
    comma = ", ";
  }
  text += "], \"allocated_bytes\": " + std::to_string(allocated) +
          ", \"peak_bytes\": " + std::to_string(peak) + "}";
  return text.c_str();
}

// --- runtime: devices -----------------------------------------------------------------------------
namespace {
int devices() { return static_cast<int>(fake::setting("FAKECUDA_DEVICES", 1)); }
int driver_version() { return static_cast<int>(fake::setting("FAKECUDA_DRIVER", 12080)); }
const char* device_name() {
  const char* name = std::getenv("FAKECUDA_NAME");
  return name ? name : "fake GPU";
}
int attribute(int which) {
  int major, minor;
  fake::capability(&major, &minor);
  switch (which) {
    case cudaDevAttrComputeCapabilityMajor: return major;
    case cudaDevAttrComputeCapabilityMinor: return minor;
    case cudaDevAttrMultiProcessorCount: return 108;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxSharedMemoryPerBlock: return kSharedBytes;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return 166912;
    case cudaDevAttrMaxThreadsPerBlock: return 1024;
    case cudaDevAttrMaxGridDimX: return 2147483647;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: return 65535;
    default: return 1024;
  }
}
}  // namespace

FAKE cudaError_t cudaGetDeviceCount(int* found) {
  *found = devices();
  return *found ? cudaSuccess : cudaErrorNoDevice;
}
FAKE cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver_version();
  return cudaSuccess;
}
FAKE cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 11080;
  return cudaSuccess;
}
FAKE cudaError_t cudaGetDevice(int* which) {
  *which = current ? current->device : 0;
  return cudaSuccess;
}
FAKE cudaError_t cudaSetDevice(int which) {
  if (which < 0 || which >= devices())
    return fail(cudaErrorInvalidDevice, "cudaSetDevice(" + std::to_string(which) + ") of " +
                                            std::to_string(devices()));
  current = context_of(which);
  return cudaSuccess;
}
FAKE cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  std::memset(p, 0, sizeof *p);
  std::snprintf(p->name, sizeof p->name, "%s", device_name());
  fake::capability(&p->major, &p->minor);
  p->multiProcessorCount = 108;
  p->totalGlobalMem = memory_bytes();
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->warpSize = 32;
  p->sharedMemPerBlock = 49152;
  p->regsPerBlock = 65536;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->maxThreadsPerMultiProcessor = 2048;
  return cudaSuccess;
}
FAKE cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  *value = attribute(which);
  return cudaSuccess;
}
FAKE cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;  // Horovod asks for one of them
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
FAKE cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
FAKE cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr, int, int) {
  *value = 0;
  return cudaSuccess;
}
FAKE cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) {
  std::memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  return cudaSuccess;
}
FAKE cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void*, int,
                                                                         size_t, unsigned) {
  *n = 2;
  return cudaSuccess;
}

// --- runtime: memory ------------------------------------------------------------------------------
FAKE cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  if (int bad = fake::unsafe_while_capturing("cudaMalloc")) return static_cast<cudaError_t>(bad);
  fake::current_device();
  *pointer = take(bytes);
  fake::count("cudaMalloc");
  // Not in the report's errors: MXNet's pool frees memory then, and asks again.
  return *pointer ? cudaSuccess : (last = cudaErrorMemoryAllocation);
}
FAKE cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return cudaMalloc(pointer, *pitch * height);
}
FAKE cudaError_t cudaFree(void* pointer) {
  if (int bad = fake::unsafe_while_capturing("cudaFree")) return static_cast<cudaError_t>(bad);
  fake::current_device();
  fake::wait_for_all();
  if (pointer == nullptr || give(pointer)) return cudaSuccess;
  return fail(cudaErrorInvalidValue, "cudaFree(" + text_of(pointer) + "): no such allocation");
}
FAKE cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  if (int bad = fake::unsafe_while_capturing("cudaHostAlloc")) return static_cast<cudaError_t>(bad);
  if (posix_memalign(pointer, 512, bytes ? bytes : 1)) return cudaErrorMemoryAllocation;
  std::lock_guard<std::mutex> hold(lock);
  pinned[static_cast<char*>(*pointer)] = bytes;
  return cudaSuccess;
}
FAKE cudaError_t cudaFreeHost(void* pointer) {
  fake::wait_for_all();
  std::lock_guard<std::mutex> hold(lock);
  pinned.erase(static_cast<char*>(pointer));
  std::free(pointer);
  return cudaSuccess;
}
FAKE cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  std::lock_guard<std::mutex> hold(lock);
  *total_bytes = memory_bytes();
  *free_bytes = *total_bytes - allocated;
  return cudaSuccess;
}
FAKE cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind kind) {
  if (int bad = fake::unsafe_while_capturing("cudaMemcpy")) return static_cast<cudaError_t>(bad);
  fake::current_device();
  return copy(to, from, n, kind, "cudaMemcpy");
}
FAKE cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind kind,
                                 cudaStream_t stream) {
  return copy(to, from, n, kind, "cudaMemcpyAsync", stream);
}
FAKE cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t n,
                                     cudaStream_t stream) {
  return copy(to, from, n, cudaMemcpyDeviceToDevice, "cudaMemcpyPeerAsync", stream);
}
FAKE cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                   size_t width, size_t height, cudaMemcpyKind kind,
                                   cudaStream_t stream) {
  for (size_t row = 0; row < height; ++row) {
    cudaError_t done = copy(static_cast<char*>(to) + row * to_pitch,
                            static_cast<const char*>(from) + row * from_pitch, width, kind,
                            "cudaMemcpy2DAsync", stream);
    if (done != cudaSuccess) return done;
  }
  return cudaSuccess;
}
FAKE cudaError_t cudaMemsetAsync(void* pointer, int value, size_t n, cudaStream_t stream) {
  if (n && !fake::on_device(pointer, n))
    return fail(cudaErrorInvalidValue, "cudaMemsetAsync(" + text_of(pointer) + "): not on the device");
  if (fake::device_of(stream) != fake::current_device())
    return fail(cudaErrorInvalidResourceHandle, "cudaMemsetAsync on another device's stream");
  fake::Work work{[=] { std::memset(pointer, value, n); }, {{"cudaMemset", 1}}, {{pointer, n}}};
  return static_cast<cudaError_t>(fake::enqueue(stream, std::move(work)));
}
FAKE cudaError_t cudaMemset(void* pointer, int value, size_t n) {
  return cudaMemsetAsync(pointer, value, n, nullptr);
}

// --- runtime: errors --------------------------------------------------------------------------------
FAKE cudaError_t cudaGetLastError() {
  cudaError_t code = last;
  last = cudaSuccess;
  return code;
}
FAKE cudaError_t cudaPeekAtLastError() { return last; }
FAKE const char* cudaGetErrorName(cudaError_t code) {
  return code == cudaErrorNoKernelImageForDevice ? "cudaErrorNoKernelImageForDevice" : "fakecuda";
}
FAKE const char* cudaGetErrorString(cudaError_t code) {
  return code == cudaErrorNoKernelImageForDevice
             ? "no kernel image is available for execution on the device"
             : "an error of the fake CUDA, see its line on stderr";
}

// --- runtime: kernels -----------------------------------------------------------------------------
FAKE void** __cudaRegisterFatBinary(void* wrapper) {
  void** handle = static_cast<void**>(std::malloc(sizeof(void*)));
  *handle = wrapper;
  return handle;
}
FAKE void __cudaRegisterFatBinaryEnd(void**) {}
FAKE void __cudaUnregisterFatBinary(void** handle) { std::free(handle); }
FAKE char __cudaInitModule(void**) { return 0; }
FAKE void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int,
                                 uint3*, uint3*, dim3*, dim3*, int*) {
  std::lock_guard<std::mutex> hold(lock);
  kernels[host] = {name, static_cast<const Wrapper*>(*handle)};
}
FAKE void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
FAKE unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  pushed = {grid, block, shared, stream};
  return 0;
}
FAKE cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared;
  *static_cast<void**>(stream) = pushed.stream;
  return cudaSuccess;
}
FAKE cudaError_t cudaLaunchKernel(const void* host, dim3 grid, dim3 block, void** arguments,
                                  size_t shared, cudaStream_t stream) {
  Kernel kernel;
  bool has_code;
  {
    std::lock_guard<std::mutex> hold(lock);
    auto found = kernels.find(host);
    if (found == kernels.end()) return cudaErrorInvalidDeviceFunction;
    kernel = found->second;
    auto known = loadable.find(kernel.image);
    if (known == loadable.end()) {
      int major, minor;
      fake::capability(&major, &minor);
      known = loadable.emplace(kernel.image, has_code_for(kernel.image, major, minor)).first;
    }
    has_code = known->second;
  }
  if (!has_code) return fail(cudaErrorNoKernelImageForDevice, kernel.name + ": no kernel image");
  if (fake::device_of(stream) != fake::current_device())
    return fail(cudaErrorInvalidResourceHandle, kernel.name + " on another device's stream");
  if (auto bad = check_launch(kernel.name, grid, block, shared)) return bad;
  if (int bad = launch(kernel.name, stream, nullptr)) return static_cast<cudaError_t>(bad);
  fake::count("kernels not computed");
  return cudaSuccess;
}

// --- driver ---------------------------------------------------------------------------------------
FAKE CUresult cuInit(unsigned) { return devices() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
FAKE CUresult cuDriverGetVersion(int* version) {
  *version = driver_version();
  return CUDA_SUCCESS;
}
FAKE CUresult cuDeviceGetCount(int* found) {
  *found = devices();
  return CUDA_SUCCESS;
}
FAKE CUresult cuDeviceGet(CUdevice* which, int number) {
  *which = number;
  return number < devices() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
FAKE CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  std::snprintf(name, length, "%s", device_name());
  return CUDA_SUCCESS;
}
FAKE CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice which) {
  std::memset(uuid, 0, sizeof *uuid);
  uuid->bytes[15] = char(which);
  return CUDA_SUCCESS;
}
FAKE CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  *value = attribute(which);
  return CUDA_SUCCESS;
}
FAKE CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice which) {
  if (which < 0 || which >= devices()) return CUDA_ERROR_INVALID_DEVICE;
  context_of(which)->made = true;
  *context = reinterpret_cast<CUcontext>(context_of(which));
  return CUDA_SUCCESS;
}
FAKE CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
FAKE CUresult cuCtxSetCurrent(CUcontext context) {
  current = reinterpret_cast<Context*>(context);
  return CUDA_SUCCESS;
}
FAKE CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(current);
  return CUDA_SUCCESS;
}
FAKE CUresult cuCtxGetDevice(CUdevice* which) {
  if (auto bad = check_context("cuCtxGetDevice")) return bad;
  *which = current->device;
  return CUDA_SUCCESS;
}
FAKE CUresult cuGetErrorString(CUresult code, const char** text) {
  *text = code == CUDA_ERROR_NO_BINARY_FOR_GPU ? "no kernel image" : "an error of the fake CUDA";
  return CUDA_SUCCESS;
}
// Run-time compiled code comes as PTX: its kernels and the architecture it is for are in the text.
FAKE CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  const std::string text(static_cast<const char*>(image));
  if (auto bad = check_context("cuModuleLoadData")) return bad;
  int major, minor, sm = 0;
  fake::capability(&major, &minor);
  const std::size_t target = text.find(".target sm_");
  if (target != std::string::npos) sm = std::atoi(text.c_str() + target + 11);
  // PTX 7.8 is CUDA 11.8's, 8.0 is 12.0's: a driver compiles none that is newer than itself.
  int ptx_major = 0, ptx_minor = 0;
  const std::size_t version = text.find(".version ");
  if (version != std::string::npos)
    std::sscanf(text.c_str() + version, ".version %d.%d", &ptx_major, &ptx_minor);
  const int needed = ptx_major < 8 ? 11000 + 10 * ptx_minor : 12000 + 10 * ptx_minor;
  if (needed > driver_version())
    return static_cast<CUresult>(fake::refuse(
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "PTX for CUDA " + std::to_string(needed)));
  if (sm == 0 || sm > major * 10 + minor)
    return static_cast<CUresult>(fake::refuse(
        CUDA_ERROR_NO_BINARY_FOR_GPU, "run-time compiled for sm_" + std::to_string(sm)));
  if (!fake::setting("FAKECUDA_COMPILER", 1)) return CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
  auto* made = new Module{current, {}};
  for (std::size_t at = 0; (at = text.find(".entry ", at)) != std::string::npos;) {
    at += 7;
    made->entries.insert(text.substr(at, text.find_first_of("( \n", at) - at));
  }
  fake::count("modules compiled for sm_" + std::to_string(sm));
  *module = reinterpret_cast<CUmodule>(made);
  return CUDA_SUCCESS;
}
FAKE CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*,
                                 void**) {
  return cuModuleLoadData(module, image);
}
FAKE CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  // The module's context, whatever the thread's: as libcuda 535 does it.
  const Module& of = *reinterpret_cast<Module*>(module);
  if (!of.entries.count(name))
    return static_cast<CUresult>(
        fake::refuse(CUDA_ERROR_NOT_FOUND, std::string("no kernel ") + name + " in its module"));
  *function = reinterpret_cast<CUfunction>(new Function{name, of.context});
  return CUDA_SUCCESS;
}
FAKE CUresult cuLaunchKernel(CUfunction which, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                             unsigned by, unsigned bz, unsigned shared, CUstream stream,
                             void** arguments, void**) {
  const Function& function = *reinterpret_cast<Function*>(which);
  const std::string& name = function.name;
  if (auto bad = check_context(name.c_str())) return bad;
  if (function.context != current)
    return static_cast<CUresult>(fake::refuse(CUDA_ERROR_INVALID_CONTEXT,
                                              name + " in a thread whose context is another device's"));
  if (fake::device_of(stream) != current->device)
    return static_cast<CUresult>(
        fake::refuse(CUDA_ERROR_INVALID_HANDLE, name + " on another device's stream"));
  if (check_launch(name, dim3{gx, gy, gz}, dim3{bx, by, bz}, shared)) return CUDA_ERROR_INVALID_VALUE;
  if (fake::fails("cuLaunchKernel")) return CUDA_ERROR_LAUNCH_FAILED;
  auto run = own_kernel(name, gx, bx, arguments);
  if (run && gy * gz * by * bz != 1)
    return static_cast<CUresult>(
        fake::refuse(CUDA_ERROR_INVALID_VALUE, name + ": the emulation knows x alone"));
  fake::count_call(stream, "fused kernels");
  if (!run) fake::count("kernels not computed");
  return launch(name, stream, run) ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

// Written when a process ends, where FAKECUDA_REPORT names a file.
__attribute__((destructor)) static void write_report() {
  const char* path = std::getenv("FAKECUDA_REPORT");
  if (path == nullptr) return;
  if (FILE* file = std::fopen((std::string(path) + "." + std::to_string(getpid())).c_str(), "w")) {
    std::fprintf(file, "%s\n", fakecuda_report());
    std::fclose(file);
  }
}
