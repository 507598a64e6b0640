// A CUDA without a GPU: what the parts of the fake share. docs/gpu.md says what it stands for.
//
// Settings, each an environment variable FAKECUDA_...:
//   DEVICES 1, CAPABILITY 8.0, MEMORY_GIB 80, NAME, DRIVER 12080   the machine
//   LAZY 0       0: work is done as early as it may. 1: as late, when something waits for it.
//                2: at a time that is drawn, the work of one stream between that of others
//   COMPUTE 1    0: calls are checked and counted, and compute nothing
//   GARBAGE 1    0: new memory is zeros, not what is no number, where calls compute
//   GRAPHS 1     0: no stream can be captured
//   COMPILER 1   0: the driver brings no compiler of PTX, as in a container without `compute`
//   KERNELS      our own kernels, compiled for the CPU (tests/train/emulated.py)
//   REPORT       where each process writes its report in the end, behind its number
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#define FAKE extern "C" __attribute__((visibility("default")))

namespace fake {

// --- the report (runtime.cc) ----------------------------------------------------------------------
// Counts one event by name; fakecuda_report() gives them all.
void count(const std::string& name, long amount = 1);

// Notes what a real GPU would have refused, or met with an illegal access: on stderr and in the
// report's "errors". Returns `code`, for the caller to hand on.
int refuse(int code, const std::string& what);

// The same, and cudaGetLastError() will give the code.
int fail(int code, const std::string& what);
void set_last(int code);

// Is this the call by this name that fakecuda_fail_next(name) has asked to fail? One whose error comes
// later, as of a kernel, is met by cudaStreamSynchronize.
bool fails(const std::string& name);

long setting(const char* name, long otherwise);  // an environment variable as a number
void capability(int* major, int* minor);         // FAKECUDA_CAPABILITY, default 8.0
bool computes();                                 // not with FAKECUDA_COMPUTE=0

// --- memory (runtime.cc) ----------------------------------------------------------------------------
// Does [pointer, pointer + bytes) lie within one allocation of device memory?
bool on_device(const void* pointer, std::size_t bytes = 1);
// Is `pointer` in the address range of device memory, allocated or not?
bool in_device_range(const void* pointer);
bool is_pinned(const void* pointer);

// --- contexts (runtime.cc), by the rules of CUDA's runtime 11.8 --------------------------------------
// The device of the calling thread, whose context is made where there is none: device 0's.
int current_device();

// --- streams and graphs (streams.cc) ------------------------------------------------------------------
// What a call asks of the device.
struct Work {
  std::function<void()> run;  // may be none
  std::map<std::string, long> counts = {};  // of each time that it runs
  std::vector<std::pair<const void*, std::size_t>> memory = {};  // that has to be there then
};

// Runs `work`, or with FAKECUDA_LAZY=1 keeps it until something waits for it: a synchronization, an
// event, the default stream or the end of an allocation. What nothing waits for is missing from the
// sums. On a stream that is captured it becomes a node of the graph. Returns a cudaError_t.
int enqueue(void* stream, Work work);
inline int enqueue(void* stream, std::function<void()> run) { return enqueue(stream, Work{std::move(run)}); }

void wait(void* stream);              // until its work is done; the default stream: all that block it
void wait_for_all();
bool is_captured(void* stream);
int device_of(void* stream);          // the default stream: the calling thread's
bool lazy();
// Refuses what a thread may not do while it captures a stream, and spoils that capture. 0: it may.
int unsafe_while_capturing(const char* name);
// Counts a call that starts work at once: none while it is captured.
void count_call(void* stream, const std::string& name);

}  // namespace fake
