// NCCL between processes of one machine, over shared memory: device memory is host memory, so sums
// are real sums. A stream has its calls in order; those of a group too, which all ranks enter alike.
#include "fake.h"

#include <fcntl.h>
#include <immintrin.h>
#include <nccl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kChunk = std::size_t(4) << 20;  // of each rank, at a time

struct Shared {
  pthread_barrier_t barrier;
  volatile int ready;
};

}  // namespace

struct ncclComm {
  int rank, size;
  std::string name;
  Shared* shared;
  char* chunks;
  char* chunk(int of) const { return chunks + of * kChunk; }
  void meet() const { pthread_barrier_wait(&shared->barrier); }
};

namespace {

std::size_t element_bytes(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16: return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 4;
  }
}

template <class T, class Load, class Store>
void sum(char* to, const std::vector<const char*>& from, std::size_t n, Load load, Store store) {
  for (std::size_t i = 0; i < n; ++i) {
    auto total = load(reinterpret_cast<const T*>(from[0])[i]);
    for (std::size_t r = 1; r < from.size(); ++r) total += load(reinterpret_cast<const T*>(from[r])[i]);
    reinterpret_cast<T*>(to)[i] = store(total);
  }
}

void sum(char* to, const std::vector<const char*>& from, std::size_t n, ncclDataType_t type) {
  auto same = [](auto value) { return value; };
  switch (type) {
    case ncclFloat32: sum<float>(to, from, n, same, same); break;
    case ncclFloat64: sum<double>(to, from, n, same, same); break;
    case ncclInt32: sum<std::int32_t>(to, from, n, same, same); break;
    case ncclInt64: sum<std::int64_t>(to, from, n, same, same); break;
    case ncclUint8: sum<std::uint8_t>(to, from, n, same, same); break;
    case ncclFloat16:
      sum<std::uint16_t>(
          to, from, n, [](std::uint16_t half) { return _cvtsh_ss(half); },
          [](float value) { return std::uint16_t(_cvtss_sh(value, 0)); });
      break;
    default: fake::refuse(ncclInvalidArgument, "a sum of type " + std::to_string(type));
  }
}

ncclResult_t check(const ncclComm* comm, const char* name, ncclDataType_t type, ncclRedOp_t op,
                   const void* send, std::size_t send_count, const void* receive,
                   std::size_t receive_count) {
  const std::size_t each = element_bytes(type);
  if (op != ncclSum) return ncclResult_t(fake::refuse(ncclInvalidArgument, std::string(name) + ": only sums"));
  if ((send_count && !fake::on_device(send, send_count * each)) ||
      (receive_count && !fake::on_device(receive, receive_count * each)))
    return ncclResult_t(fake::refuse(
        ncclInvalidArgument, std::string(name) + ": a buffer that is not on the device as a whole"));
  fake::count(name);
  fake::count(std::string(name) + " over " + std::to_string(comm->size));
  if (type == ncclFloat16) fake::count(std::string(name) + " of float16");
  if (type == ncclFloat32) fake::count(std::string(name) + " of float32");
  fake::count(std::string(name) + " bytes", long(std::max(send_count, receive_count) * each));
  return ncclSuccess;
}

// Every rank brings `count` elements; `take(first, n, chunks)` gets all ranks' n elements from `first`.
template <class Take>
void exchange(ncclComm* comm, const void* send, std::size_t count, std::size_t each, bool brings,
              Take take) {
  const std::size_t step = kChunk / each;
  for (std::size_t first = 0; first < count; first += step) {
    const std::size_t n = std::min(step, count - first);
    if (brings)
      std::memcpy(comm->chunk(comm->rank), static_cast<const char*>(send) + first * each, n * each);
    comm->meet();
    std::vector<const char*> all;
    for (int r = 0; r < comm->size; ++r) all.push_back(comm->chunk(r));
    take(first, n, all);
    comm->meet();
  }
}

// The sum of all ranks' `count` elements; `receives`: does this rank get it?
ncclResult_t reduce(const char* name, const void* send, void* receive, std::size_t count,
                    ncclDataType_t type, ncclRedOp_t op, bool receives, ncclComm* comm,
                    cudaStream_t stream) {
  if (auto bad = check(comm, name, type, op, send, count, receive, receives ? count : 0)) return bad;
  fake::enqueue(stream, [=] {
    const std::size_t each = element_bytes(type);
    std::vector<char> total(kChunk);
    exchange(comm, send, count, each, true, [&](std::size_t first, std::size_t n, auto& all) {
      if (!receives) return;
      if (std::getenv("FAKECUDA_NCCL_DROPS")) all.pop_back();
      sum(total.data(), all, n, type);
      std::memcpy(static_cast<char*>(receive) + first * each, total.data(), n * each);
    });
  });
  return ncclSuccess;
}

}  // namespace

FAKE ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
FAKE ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  unsigned long number;  // of no other process, whatever became of its segment
  if (getrandom(&number, sizeof number, 0) != sizeof number) return ncclSystemError;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "/fakenccl-%d-%lx", getpid(), number);
  return ncclSuccess;
}
FAKE ncclResult_t ncclCommInitRank(ncclComm_t* made, int size, ncclUniqueId id, int rank) {
  if (const char* words = std::getenv("FAKECUDA_NCCL_REFUSES")) {
    std::printf("host:%d:%d [%d] NCCL WARN %s\n", getpid(), getpid(), rank, words);
    std::fflush(stdout);
    return ncclInvalidUsage;
  }
  const std::size_t bytes = 4096 + size * kChunk;
  int file = -1;
  if (rank == 0) {
    file = shm_open(id.internal, O_CREAT | O_EXCL | O_RDWR, 0600);
    if (file >= 0 && ftruncate(file, long(bytes)) != 0) return ncclSystemError;
  } else {
    for (int tries = 0; file < 0 && tries < 30000; ++tries) {
      file = shm_open(id.internal, O_RDWR, 0600);
      if (file >= 0 && lseek(file, 0, SEEK_END) < long(bytes)) close(file), file = -1;
      if (file < 0) usleep(1000);
    }
  }
  if (file < 0) return ncclResult_t(fake::refuse(ncclSystemError, std::string(id.internal) + ": no shared memory"));
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return ncclSystemError;
  auto* comm = new ncclComm{rank, size, id.internal, static_cast<Shared*>(memory),
                            static_cast<char*>(memory) + 4096};
  if (rank == 0) {
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&comm->shared->barrier, &attributes, unsigned(size));
    __sync_synchronize();
    comm->shared->ready = 1;
  }
  while (!comm->shared->ready) usleep(1000);
  comm->meet();
  if (rank == 0) shm_unlink(id.internal);  // everybody has it; nothing stays behind
  fake::count("ncclCommInitRank over " + std::to_string(size));
  *made = comm;
  return ncclSuccess;
}
FAKE ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  (void)comm;  // it and its mapping stay: other ranks may be in their last barrier, sums may wait
  return ncclSuccess;
}
FAKE ncclResult_t ncclCommAbort(ncclComm_t comm) { return ncclCommDestroy(comm); }
FAKE ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}
FAKE const char* ncclGetErrorString(ncclResult_t) {
  return "an error of the fake NCCL, see its line on stderr";
}
FAKE ncclResult_t ncclGroupStart() { return ncclSuccess; }
FAKE ncclResult_t ncclGroupEnd() { return ncclSuccess; }

FAKE ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                                ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return reduce("ncclAllReduce", send, receive, count, type, op, true, comm, stream);
}
FAKE ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                             ncclRedOp_t op, int root, ncclComm_t comm,
                             cudaStream_t stream) {
  return reduce("ncclReduce", send, receive, count, type, op, comm->rank == root, comm, stream);
}
FAKE ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type,
                                    ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  if (auto bad = check(comm, "ncclReduceScatter", type, op, send, count * comm->size, receive, count))
    return bad;
  fake::enqueue(stream, [=] {
    const std::size_t each = element_bytes(type), begin = comm->rank * count, end = begin + count;
    std::vector<char> total(kChunk);
    // Collected first: `receive` may be a part of `send`, of which later chunks are still to come.
    std::vector<char> mine(count * each);
    exchange(comm, send, count * comm->size, each, true,
             [&](std::size_t first, std::size_t n, auto& all) {
               const std::size_t from = std::max(first, begin), to = std::min(first + n, end);
               if (from >= to) return;
               sum(total.data(), all, n, type);
               std::memcpy(mine.data() + (from - begin) * each, total.data() + (from - first) * each,
                           (to - from) * each);
             });
    std::memcpy(receive, mine.data(), mine.size());
  });
  return ncclSuccess;
}
FAKE ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type,
                                ncclComm_t comm, cudaStream_t stream) {
  if (auto bad = check(comm, "ncclAllGather", type, ncclSum, send, count, receive, count * comm->size))
    return bad;
  fake::enqueue(stream, [=] {
    const std::size_t each = element_bytes(type);
    exchange(comm, send, count, each, true, [&](std::size_t first, std::size_t n, auto& all) {
      for (int r = 0; r < comm->size; ++r)
        std::memcpy(static_cast<char*>(receive) + (r * count + first) * each, all[r], n * each);
    });
  });
  return ncclSuccess;
}
FAKE ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type,
                                int root, ncclComm_t comm, cudaStream_t stream) {
  const bool mine = comm->rank == root;
  if (auto bad = check(comm, "ncclBroadcast", type, ncclSum, send, mine ? count : 0, receive, count))
    return bad;
  fake::enqueue(stream, [=] {
    const std::size_t each = element_bytes(type);
    exchange(comm, send, count, each, mine, [&](std::size_t first, std::size_t n, auto& all) {
      std::memmove(static_cast<char*>(receive) + first * each, all[root], n * each);
    });
  });
  return ncclSuccess;
}
FAKE ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                            cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
