/* Operations of MXNet's engine that put work on a GPU: a kernel, or a part of a step. Python makes the
   tables (calls.py), so nothing here knows cuDNN or a network. In C, since a worker of the engine that
   calls Python waits for its lock. */
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

enum { WORDS = 30, SETTINGS = 16, THREADS = 256, HOST_TO_DEVICE = 1, OF_THIS_THREAD = 1 };

/* A call of cuDNN, or with `blocks` a kernel's launch. On x86-64 whole numbers and addresses go by
   registers of their own and then the stack, doubles by others: all arguments of all functions of
   cuDNN, in their order, are WORDS words and two doubles; what a function does not take it does not
   read. */
typedef struct {
  void *function;
  int64_t blocks;
  uint64_t words[WORDS];
  double reals[2];
} Call;

/* What runs in one operation, after the settings of this time have been copied to the device. */
typedef struct {
  const Call *calls;
  int64_t count;
  void *settings;
  int64_t waits;      /* does somebody else read what it writes? */
  int64_t eager_runs; /* before it is captured as a graph */
  void *graph;
  int64_t failed;     /* the number of the call that failed, from 1 */
  int64_t status;     /* what that answered */
} Segment;

typedef struct {
  Segment *segment;
  uint64_t settings[SETTINGS];
} Run;

typedef struct { /* of MXNet: include/mxnet/base.h, its stream begins with CUDA's */
  int32_t device, number;
  void **stream;
} RunContext;

typedef int (*CudnnFunction)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                             uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                             uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                             uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                             uint64_t, uint64_t, double, double);

static struct {
  int (*launch_kernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                       void *, void **, void **);
  int (*copy)(void *, const void *, size_t, int, void *);
  int (*synchronize)(void *);
  int (*launch_host_function)(void *, void (*)(void *), void *);
  int (*begin_capture)(void *, int);
  int (*end_capture)(void *, void **);
  int (*instantiate)(void **, void *, void *, char *, size_t);
  int (*launch_graph)(void *, void *);
  int (*forget_error)(void);
  void *stream; /* of the steps */
} cuda;

/* `addresses`: of the functions above, and the stream. */
void rn50_connect(void *const *addresses) {
  void **member = (void **)&cuda;
  for (size_t i = 0; i < sizeof cuda / sizeof(void *); ++i) member[i] = addresses[i];
}

static int make(const Call *call, void *stream) {
  const uint64_t *w = call->words;
  if (call->blocks) {
    void *parameters[WORDS];
    for (int i = 0; i < WORDS; ++i) parameters[i] = (void *)&w[i];
    return cuda.launch_kernel(call->function, (unsigned)call->blocks, 1, 1, THREADS, 1, 1, 0, stream,
                              parameters, NULL);
  }
  return ((CudnnFunction)call->function)(
      w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13], w[14],
      w[15], w[16], w[17], w[18], w[19], w[20], w[21], w[22], w[23], w[24], w[25], w[26], w[27], w[28],
      w[29], call->reals[0], call->reals[1]);
}

static int make_all(Segment *segment) {
  for (int64_t i = 0; i < segment->count; ++i) {
    int status = make(&segment->calls[i], cuda.stream);
    if (status) {
      segment->failed = i + 1;
      return status;
    }
  }
  return 0;
}

/* Where the driver cannot, the calls go on being made one by one. */
static void capture(Segment *segment) {
  void *graph = NULL;
  if (cuda.begin_capture(cuda.stream, OF_THIS_THREAD)) {
    cuda.forget_error();
    return;
  }
  int failed = make_all(segment);
  failed = cuda.end_capture(cuda.stream, &graph) || failed;
  if (failed || cuda.instantiate(&segment->graph, graph, NULL, NULL, 0)) segment->graph = NULL;
  segment->failed = 0;
  cuda.forget_error();
}

static int run(Segment *segment, const uint64_t *settings) {
  int status = 0;
  if (segment->settings)
    status = cuda.copy(segment->settings, settings, sizeof(uint64_t[SETTINGS]), HOST_TO_DEVICE,
                       cuda.stream);
  if (status) return status;
  if (segment->eager_runs-- == 0) capture(segment);
  status = segment->graph ? cuda.launch_graph(segment->graph, cuda.stream) : make_all(segment);
  if (status) return status;
  return segment->waits ? cuda.synchronize(cuda.stream) : 0;
}

/* A part of a step; after a failure nothing is done any more. */
void rn50_run(void *run_context, void *parameter) {
  Run *this_time = parameter;
  Segment *segment = this_time->segment;
  (void)run_context;
  if (!segment->status) segment->status = run(segment, this_time->settings);
}

int rn50_launch_status; /* of the first launch that failed */

/* One kernel, on MXNet's stream and to its end. */
void rn50_launch(void *run_context, void *parameter) {
  void *stream = *((RunContext *)run_context)->stream;
  int status = make(parameter, stream);
  if (!status) status = cuda.synchronize(stream);
  if (!rn50_launch_status) rn50_launch_status = status;
}

static void note_time(void *slot) {
  struct timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  *(double *)slot = now.tv_sec + 1e-9 * now.tv_nsec;
}

/* As rn50_stamp of kernels/stamp.c, when the device has come that far. */
void rn50_stamp_step(void *run_context, void *slot) {
  (void)run_context;
  cuda.launch_host_function(cuda.stream, note_time, slot);
}
