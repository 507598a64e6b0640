// Enough of CUDA to run device.cu on a CPU: blocks run one after the other, in an order that is not
// theirs, on shared memory that is no number when they begin. Under ThreadSanitizer the threads of a
// block are threads. Else they are contexts of one thread, which takes turns at barriers: a block of
// 256 then costs no more than its work. Forced in before the text, with EMULATED.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <csetjmp>
#include <ucontext.h>

struct Index { unsigned x; };
struct uint4 { unsigned x, y, z, w; };
struct float4 { float x, y, z, w; };
inline thread_local Index threadIdx;
inline Index blockIdx, blockDim, gridDim;

#define __device__
#define __launch_bounds__(...)
#define __threadfence()  // blocks run one after the other
#define __global__
// All shared arrays lie in one section, whose ends the linker knows.
#define __shared__ static __attribute__((section("shared_arrays")))
#define __syncthreads() meet()
using std::sqrt;

extern "C" __attribute__((weak, visibility("hidden"))) char __start_shared_arrays[], __stop_shared_arrays[];

inline void meet();

inline int atomicAdd(int* to, int value) { return std::atomic_ref<int>(*to).fetch_add(value); }

template <typename... A, std::size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_reference_t<A>*>(arguments[I])...);
}

inline void begin_block(unsigned block) {
  blockIdx = {block};
  std::memset(__start_shared_arrays, 0xFF, __stop_shared_arrays - __start_shared_arrays);
}

#ifdef __SANITIZE_THREAD__
inline std::barrier<>* block_barrier;
inline void meet() { block_barrier->arrive_and_wait(); }

template <typename Work>
void run_blocks(const std::vector<unsigned>& order, int threads, Work work) {
  std::barrier<> barrier(threads);
  block_barrier = &barrier;
  std::vector<std::thread> running;
  for (int number = 0; number < threads; ++number)
    running.emplace_back([&, number] {
      threadIdx = {unsigned(number)};
      for (unsigned block : order) {
        if (number == 0) begin_block(block);
        meet();
        work();
        meet();
      }
    });
  for (auto& thread : running) thread.join();
}
#else
// A fiber runs one thread of the block after the other until one has to wait at a barrier. All that
// wait go on, in turn, once no thread is left to begin. Fibers outlive their block: to change between
// them is a jump, to make one takes calls of the system.
struct Fiber {
  ucontext_t context;
  jmp_buf jump;
  std::vector<char> stack = std::vector<char>(1 << 16);
  Index thread = {};
  bool begun = false, waits = false;
};
struct Block {
  std::function<void()> work = {};
  std::vector<std::unique_ptr<Fiber>> fibers = {};
  jmp_buf scheduler;
  Fiber* running = nullptr;
  unsigned next = 0;
};
inline thread_local Block block;

inline void leave(Fiber* fiber) {
  if (!_setjmp(fiber->jump)) _longjmp(block.scheduler, 1);
}

inline void meet() {
  Fiber* fiber = block.running;
  fiber->thread = threadIdx;
  fiber->waits = true;
  leave(fiber);
  threadIdx = fiber->thread;
}

inline void run_threads() {
  for (;;) {
    while (block.next < blockDim.x) {
      threadIdx = {block.next++};
      block.work();
    }
    leave(block.running);
  }
}

__attribute__((noinline)) inline void resume(Fiber& fiber) {
  fiber.waits = false;
  block.running = &fiber;
  if (_setjmp(block.scheduler)) return;
  if (fiber.begun) _longjmp(fiber.jump, 1);
  fiber.begun = true;
  setcontext(&fiber.context);
}

inline Fiber& fiber_of(std::size_t number) {
  if (number == block.fibers.size()) {
    block.fibers.push_back(std::make_unique<Fiber>());
    Fiber& made = *block.fibers.back();
    getcontext(&made.context);
    made.context.uc_stack.ss_sp = made.stack.data();
    made.context.uc_stack.ss_size = made.stack.size();
    makecontext(&made.context, run_threads, 0);
  }
  return *block.fibers[number];
}

inline void run_block() {
  std::size_t begun = 0;
  block.next = 0;
  while (block.next < blockDim.x) resume(fiber_of(begun++));
  for (bool any = true; any;) {
    any = false;
    for (std::size_t number = 0; number < begun; ++number)
      if (block.fibers[number]->waits) {
        resume(*block.fibers[number]);
        any = true;
      }
  }
}

template <typename Work>
void run_blocks(const std::vector<unsigned>& order, int, Work work) {
  block.work = work;
  for (unsigned number : order) {
    begin_block(number);
    run_block();
  }
}
#endif

template <typename... A>
void emulate(void (*kernel)(A...), int blocks, int threads, void** arguments) {
  gridDim = {unsigned(blocks)};
  blockDim = {unsigned(threads)};
  std::vector<unsigned> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::minstd_rand(blocks));
  run_blocks(order, threads, [=] { call(kernel, arguments, std::index_sequence_for<A...>{}); });
}
