// Streams, events and graphs: the order of work. A graph is the work of the calls that were made while
// a stream was captured, and a launch runs it again, on what memory holds then.
#include "fake.h"

#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include <cuda_runtime_api.h>  // behind C++'s own, whose words it takes

namespace {

std::mutex lock;  // of everything below

using Nodes = std::vector<fake::Work>;

struct Stream;
struct Capture {
  Stream* origin;
  std::thread::id thread;
  cudaStreamCaptureMode mode;
  bool spoiled = false;
  Nodes nodes = {};
};
struct Stream {
  bool blocking;  // the default stream waits for it
  int device;
  std::deque<std::function<void()>> work = {};
  long added = 0, done = 0;
  std::shared_ptr<Capture> capture = nullptr;
};
struct Event {
  int device;
  Stream* stream = nullptr;
  long until = 0;
  std::shared_ptr<Capture> capture = nullptr;
};
struct Graph {
  Nodes nodes;
};
struct Executable {
  std::shared_ptr<const Nodes> nodes;
  std::map<std::string, long> counts;  // of one launch
  int device;
};

auto& streams = *new std::set<Stream*>;
auto& captures = *new std::set<std::shared_ptr<Capture>>;
std::recursive_mutex running;  // one for all streams: their events may wait for each other

Stream* stream_of(const void* stream) {
  if (stream == cudaStreamLegacy) return nullptr;
  return static_cast<Stream*>(const_cast<void*>(stream));
}
Event* event_of(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }

void run(Stream* stream, long until) {
  std::lock_guard<std::recursive_mutex> one(running);
  while (stream->done < until) {
    std::function<void()> work;
    {
      std::lock_guard<std::mutex> hold(lock);
      work = std::move(stream->work.front());
      stream->work.pop_front();
    }
    work();
    ++stream->done;
  }
}

long added(Stream* stream) {
  std::lock_guard<std::mutex> hold(lock);
  return stream->added;
}

void run_all(bool blocking_alone) {
  std::lock_guard<std::recursive_mutex> one(running);
  std::set<Stream*> found;
  {
    std::lock_guard<std::mutex> hold(lock);
    found = streams;
  }
  for (Stream* stream : found)
    if (stream->blocking || !blocking_alone) run(stream, added(stream));
}

// Some of the work that waits, of a stream that is drawn.
void run_some() {
  static thread_local std::minstd_rand draw(std::random_device{}());
  Stream* stream;
  long until;
  {
    std::lock_guard<std::mutex> hold(lock);
    stream = *std::next(streams.begin(), draw() % streams.size());
    until = stream->added - long(draw() % 4);
  }
  run(stream, until);
}

std::shared_ptr<Capture> capture_of(const void* stream) {
  std::lock_guard<std::mutex> hold(lock);
  return stream_of(stream) ? stream_of(stream)->capture : nullptr;
}

cudaError_t fail(cudaError_t code, const std::string& what) {
  return static_cast<cudaError_t>(fake::fail(code, what));
}

// The captures that `spoils` says are spoiled; were there any?
template <class Condition>
bool spoil(Condition spoils) {
  std::lock_guard<std::mutex> hold(lock);
  bool any = false;
  for (const auto& capture : captures)
    if (spoils(*capture)) any = capture->spoiled = true;
  return any;
}

// A synchronization: of a stream, or of an event in it.
cudaError_t check_wait(const char* name, const std::shared_ptr<Capture>& of) {
  if (of == nullptr) return static_cast<cudaError_t>(fake::unsafe_while_capturing(name));
  of->spoiled = true;
  return fail(cudaErrorStreamCaptureUnsupported, std::string(name) + ": its stream is captured");
}

cudaError_t make_stream(cudaStream_t* made, bool blocking) {
  auto* stream = new Stream{blocking, fake::current_device()};
  std::lock_guard<std::mutex> hold(lock);
  streams.insert(stream);
  *made = reinterpret_cast<cudaStream_t>(stream);
  return cudaSuccess;
}

}  // namespace

namespace fake {

bool lazy() {
  static const bool is = setting("FAKECUDA_LAZY", 0);
  return is;
}

int device_of(void* stream) {
  return stream_of(stream) ? stream_of(stream)->device : current_device();
}

bool is_captured(void* stream) { return capture_of(stream) != nullptr; }

void count_call(void* stream, const std::string& name) {
  if (!is_captured(stream)) count(name);
}

int unsafe_while_capturing(const char* name) {
  const auto thread = std::this_thread::get_id();
  const bool any = spoil([&](const Capture& capture) {
    return capture.mode == cudaStreamCaptureModeGlobal ||
           (capture.mode == cudaStreamCaptureModeThreadLocal && capture.thread == thread);
  });
  if (!any) return cudaSuccess;
  return fail(cudaErrorStreamCaptureUnsupported, std::string(name) + " while a stream is captured");
}

int enqueue(void* where, Work work) {
  Stream* stream = stream_of(where);
  if (stream == nullptr) {
    const auto thread = std::this_thread::get_id();
    if (spoil([&](const Capture& c) { return c.origin->blocking || c.thread == thread; }))
      return ::fail(cudaErrorStreamCaptureImplicit, "the default stream is used in a capture");
  }
  if (auto capture = capture_of(where)) {
    if (capture->spoiled)
      return ::fail(cudaErrorStreamCaptureInvalidated, "work for a stream whose capture is spoiled");
    std::lock_guard<std::mutex> hold(lock);
    capture->nodes.push_back(std::move(work));
    return cudaSuccess;
  }
  for (const auto& [name, amount] : work.counts) count(name, amount);
  if (!work.run) return cudaSuccess;
  if (!lazy() || stream == nullptr) {
    if (lazy()) run_all(true);
    work.run();
    return cudaSuccess;
  }
  {
    std::lock_guard<std::mutex> hold(lock);
    stream->work.push_back(std::move(work.run));
    ++stream->added;
  }
  if (setting("FAKECUDA_LAZY", 0) == 2) run_some();
  return cudaSuccess;
}

void wait(void* where) {
  Stream* stream = stream_of(where);
  if (stream == nullptr) return run_all(true);
  run(stream, added(stream));
}

void wait_for_all() { run_all(false); }

}  // namespace fake

// --- streams --------------------------------------------------------------------------------------
FAKE cudaError_t cudaStreamCreate(cudaStream_t* stream) { return make_stream(stream, true); }
FAKE cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return make_stream(stream, !(flags & cudaStreamNonBlocking));
}
FAKE cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
FAKE cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  fake::wait(stream);
  std::lock_guard<std::mutex> hold(lock);
  streams.erase(stream_of(stream));  // not deleted: events may still name it
  return cudaSuccess;
}
FAKE cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (auto bad = check_wait("cudaStreamSynchronize", capture_of(stream))) return bad;
  fake::count("cudaStreamSynchronize");
  fake::count("host waits");
  fake::wait(stream);
  return fake::fails("cudaStreamSynchronize") ? cudaErrorLaunchFailure : cudaSuccess;
}
FAKE cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (auto bad = check_wait("cudaStreamQuery", capture_of(stream))) return bad;
  fake::wait(stream);
  return cudaSuccess;
}
FAKE cudaError_t cudaDeviceSynchronize() {
  if (auto bad = check_wait("cudaDeviceSynchronize", nullptr)) return bad;
  fake::count("cudaDeviceSynchronize");
  fake::count("host waits");
  fake::current_device();
  run_all(false);
  return cudaSuccess;
}
FAKE cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return static_cast<cudaError_t>(fake::enqueue(stream, [=] { function(data); }));
}

// --- events ---------------------------------------------------------------------------------------
FAKE cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new Event{fake::current_device()});
  return cudaSuccess;
}
FAKE cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
FAKE cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event_of(event);
  return cudaSuccess;
}
FAKE cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t where) {
  Stream* stream = stream_of(where);
  const int device = event_of(event)->device;
  if (fake::device_of(where) != device)
    return fail(cudaErrorInvalidResourceHandle, "an event of another device than its stream's");
  if (stream == nullptr) run_all(true);
  *event_of(event) = {device, stream, stream ? added(stream) : 0, capture_of(where)};
  return cudaSuccess;
}
FAKE cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (auto bad = check_wait("a query of an event", event_of(event)->capture)) return bad;
  if (event_of(event)->stream) run(event_of(event)->stream, event_of(event)->until);
  return cudaSuccess;
}
FAKE cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  fake::count("host waits");
  return cudaEventQuery(event);
}
FAKE cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 1;  // of no meaning: nothing here takes a device's time
  return cudaSuccess;
}
// Work of a captured stream's event joins the waiting stream into the capture, in order of the calls.
FAKE cudaError_t cudaStreamWaitEvent(cudaStream_t where, cudaEvent_t event, unsigned) {
  const Event now = *event_of(event);
  const auto capture = capture_of(where);
  if (now.capture) {
    std::lock_guard<std::mutex> hold(lock);
    stream_of(where)->capture = now.capture;
    return cudaSuccess;
  }
  if (capture) {
    capture->spoiled = true;
    return fail(cudaErrorStreamCaptureIsolation, "a captured stream waits for work outside");
  }
  if (now.stream) fake::enqueue(where, [=] { run(now.stream, now.until); });
  return cudaSuccess;
}

// --- graphs ---------------------------------------------------------------------------------------
FAKE cudaError_t cudaStreamBeginCapture(cudaStream_t where, cudaStreamCaptureMode mode) {
  Stream* stream = stream_of(where);
  if (!fake::setting("FAKECUDA_GRAPHS", 1)) {  // a driver that cannot: no fault of the caller's
    fake::set_last(cudaErrorStreamCaptureUnsupported);
    return cudaErrorStreamCaptureUnsupported;
  }
  if (stream == nullptr)
    return fail(cudaErrorStreamCaptureUnsupported, "a capture of the default stream");
  if (fake::is_captured(where)) return fail(cudaErrorIllegalState, "a capture within a capture");
  std::lock_guard<std::mutex> hold(lock);
  stream->capture = std::make_shared<Capture>(Capture{stream, std::this_thread::get_id(), mode});
  captures.insert(stream->capture);
  return cudaSuccess;
}
FAKE cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const auto capture = capture_of(stream);
  *status = cudaStreamCaptureStatusNone;
  if (capture)
    *status = capture->spoiled ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
FAKE cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* made) {
  *made = nullptr;
  const auto capture = capture_of(stream);
  if (capture == nullptr || capture->origin != stream_of(stream))
    return fail(cudaErrorIllegalState, "the end of a capture that did not begin here");
  const bool foreign = capture->mode != cudaStreamCaptureModeRelaxed &&
                       capture->thread != std::this_thread::get_id();
  if (foreign) return fail(cudaErrorStreamCaptureWrongThread, "a capture ended by another thread");
  {
    std::lock_guard<std::mutex> hold(lock);
    captures.erase(capture);
    for (Stream* each : streams)
      if (each->capture == capture) each->capture = nullptr;
  }
  if (capture->spoiled)
    return fail(cudaErrorStreamCaptureInvalidated, "the end of a capture that was spoiled");
  *made = reinterpret_cast<cudaGraph_t>(new Graph{capture->nodes});
  return cudaSuccess;
}
FAKE cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, cudaGraphNode_t*,
                                      char*, size_t) {
  const Nodes& nodes = reinterpret_cast<Graph*>(graph)->nodes;
  auto* executable = new Executable{std::make_shared<const Nodes>(nodes), {}, fake::current_device()};
  for (const auto& node : nodes)
    for (const auto& [name, amount] : node.counts) executable->counts[name] += amount;
  fake::count("graphs");
  fake::count("graph nodes", long(nodes.size()));
  *made = reinterpret_cast<cudaGraphExec_t>(executable);
  return cudaSuccess;
}
FAKE cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes != nullptr) return fail(cudaErrorNotSupported, "cudaGraphGetNodes: their number alone");
  *count = reinterpret_cast<Graph*>(graph)->nodes.size();
  return cudaSuccess;
}
FAKE cudaError_t cudaGraphLaunch(cudaGraphExec_t which, cudaStream_t stream) {
  const Executable& executable = *reinterpret_cast<Executable*>(which);
  if (executable.device != fake::device_of(stream))
    return fail(cudaErrorInvalidResourceHandle, "a graph on another device's stream");
  fake::Work work{nullptr, executable.counts};
  for (const auto& node : *executable.nodes)
    for (const auto& [place, bytes] : node.memory) {
      if (!fake::on_device(place, bytes))
        return fail(cudaErrorIllegalAddress, "a graph whose memory was given back");
      work.memory.emplace_back(place, bytes);
    }
  if (fake::fails("cudaGraphLaunch")) return cudaErrorLaunchFailure;
  fake::count_call(stream, "launches");
  fake::count_call(stream, "graph launches");
  work.run = [nodes = executable.nodes] {
    for (const auto& node : *nodes)
      if (node.run) node.run();
  };
  return static_cast<cudaError_t>(fake::enqueue(stream, std::move(work)));
}
FAKE cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}
FAKE cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete reinterpret_cast<Executable*>(executable);
  return cudaSuccess;
}
