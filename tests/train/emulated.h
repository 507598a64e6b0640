// Enough of CUDA to run device.cu on a CPU: the threads of a block are threads, blocks run one after
// the other, in an order that is not theirs, on shared memory that is no number when they begin.
// Forced in before the text, with EMULATED.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

struct Index { unsigned x; };
struct uint4 { unsigned x, y, z, w; };
struct float4 { float x, y, z, w; };
inline thread_local Index threadIdx;
inline Index blockIdx, blockDim, gridDim;
inline std::barrier<>* block_barrier;

#define __device__
#define __launch_bounds__(...)
#define __threadfence()  // blocks run one after the other
#define __global__
// All shared arrays lie in one section, whose ends the linker knows.
#define __shared__ static __attribute__((section("shared_arrays")))
#define __syncthreads() block_barrier->arrive_and_wait()
using std::sqrt;

extern "C" __attribute__((weak, visibility("hidden"))) char __start_shared_arrays[], __stop_shared_arrays[];

inline int atomicAdd(int* to, int value) { return std::atomic_ref<int>(*to).fetch_add(value); }

template <typename... A, std::size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_reference_t<A>*>(arguments[I])...);
}

template <typename... A>
void emulate(void (*kernel)(A...), int blocks, int threads, void** arguments) {
  gridDim = {unsigned(blocks)};
  blockDim = {unsigned(threads)};
  std::vector<unsigned> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::minstd_rand(blocks));
  std::barrier<> barrier(threads);
  block_barrier = &barrier;
  std::vector<std::thread> running;
  for (int number = 0; number < threads; ++number)
    running.emplace_back([&, number] {
      threadIdx = {unsigned(number)};
      for (unsigned block : order) {
        if (number == 0) {
          blockIdx = {block};
          std::memset(__start_shared_arrays, 0xFF, __stop_shared_arrays - __start_shared_arrays);
        }
        __syncthreads();
        call(kernel, arguments, std::index_sequence_for<A...>{});
        __syncthreads();
      }
    });
  for (auto& thread : running) thread.join();
}
