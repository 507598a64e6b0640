// Enough of CUDA to run train/kernels/device.cu on a CPU: the threads of a block are threads, blocks
// run one after the other. Forced in before the text, with EMULATED.
#include <atomic>
#include <barrier>
#include <cmath>
#include <thread>
#include <utility>
#include <vector>

struct Index { unsigned x; };
inline thread_local Index threadIdx;
inline Index blockIdx, blockDim, gridDim;
inline std::barrier<>* block_barrier;

#define __device__
#define __global__
#define __shared__ static
#define __syncthreads() block_barrier->arrive_and_wait()
using std::sqrt;

inline int atomicAdd(int* to, int value) { return std::atomic_ref<int>(*to).fetch_add(value); }

template <typename... A, std::size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_reference_t<A>*>(arguments[I])...);
}

template <typename... A>
void emulate(void (*kernel)(A...), int blocks, int threads, void** arguments) {
  gridDim = {unsigned(blocks)};
  blockDim = {unsigned(threads)};
  std::barrier<> barrier(threads);
  block_barrier = &barrier;
  blockIdx = {0};
  std::vector<std::thread> running;
  for (int number = 0; number < threads; ++number)
    running.emplace_back([&, number] {
      threadIdx = {unsigned(number)};
      for (int block = 0; block < blocks; ++block) {
        call(kernel, arguments, std::index_sequence_for<A...>{});
        __syncthreads();
        if (number == 0) ++blockIdx.x;
        __syncthreads();
      }
    });
  for (auto& thread : running) thread.join();
}
