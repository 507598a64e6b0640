// A CUDA without a GPU: what the parts of the fake share. docs/gpu.md says what it stands for.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#define FAKE extern "C" __attribute__((visibility("default")))

namespace fake {

// Counts one event by name; fakecuda_report() gives them all.
void count(const std::string& name, long amount = 1);

// Notes what a real GPU would have refused, or met with an illegal access: on stderr and in the
// report's "errors". Returns `code`, for the caller to hand on.
int refuse(int code, const std::string& what);

// Does [pointer, pointer + bytes) lie within one allocation of device memory?
bool on_device(const void* pointer, std::size_t bytes = 1);
// Is `pointer` in the address range of device memory, allocated or not?
bool in_device_range(const void* pointer);

// Does `work` now, or with FAKECUDA_LAZY=1 when something waits for it: a synchronization, an event,
// the default stream or the end of an allocation. What nothing waits for is missing from the sums.
void enqueue(void* stream, std::function<void()> work);

long setting(const char* name, long otherwise);  // an environment variable as a number
void capability(int* major, int* minor);         // FAKECUDA_CAPABILITY, default 8.0

}  // namespace fake
